// The checks behind op_case.h, and that they can fail.
#include "ops/op_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "base/rng.h"
#include "quant/formats.h"
#include "quant/half.h"

namespace fathom {
namespace {

using Values = std::vector<float>;

// Sets FATHOM_ISA while it lives: a Context reads it when it is made.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) {
    if (const char* old = std::getenv("FATHOM_ISA")) old_ = old;
    setenv("FATHOM_ISA", name_of(isa), 1);
  }
  ~ForcedIsa() { old_.empty() ? unsetenv("FATHOM_ISA") : setenv("FATHOM_ISA", old_.c_str(), 1); }

 private:
  std::string old_;
};

// Formats that nobody encodes here: any bytes are a block, but for its scales, which must be tame.
void fill_blocks(Rng& rng, DType dtype, std::byte* bytes, int64_t count) {
  const int64_t size = traits(dtype).block_bytes;
  for (int64_t i = 0; i < count * size; ++i) bytes[i] = static_cast<std::byte>(rng.below(256));
  std::vector<int64_t> scales;
  switch (dtype) {
    case DType::kQ2_K:
      scales = {80, 82};
      break;
    case DType::kQ3_K:
      scales = {108};
      break;
    case DType::kQ4_K:
    case DType::kQ5_K:
      scales = {0, 2};
      break;
    case DType::kQ6_K:
      scales = {208};
      break;
    default:
      fail("op_case: no random {}", name_of(dtype));
  }
  for (int64_t block = 0; block < count; ++block) {
    for (const int64_t at : scales) {
      const uint16_t scale = f16_of_f32(0.002f * (1.0f + rng.uniform()));
      std::memcpy(bytes + block * size + at, &scale, sizeof scale);
    }
  }
}

Tensor make_input(const OpInput& input, uint32_t index) {
  Tensor tensor = Tensor::owned(Device::kCpu, input.dtype, input.shape);
  Rng rng(2024, {index, 0, 0});
  const int64_t n = input.shape.numel();
  if (input.dtype == DType::kI32) {
    for (int64_t i = 0; i < n; ++i) {
      tensor.data<int32_t>()[i] = static_cast<int32_t>(rng.below(static_cast<uint32_t>(input.below)));
    }
    return tensor;
  }
  if (input.dtype != DType::kF32 && !can_encode(input.dtype)) {
    fill_blocks(rng, input.dtype, tensor.data<std::byte>(), n / traits(input.dtype).block);
    return tensor;
  }
  Values values(static_cast<size_t>(n));
  for (float& value : values) value = rng.normal() * input.scale;
  const int64_t width = input.shape.last(), bytes = row_bytes(input.dtype, width);
  for (int64_t r = 0; width > 0 && r < n / width; ++r) {
    encode_row(input.dtype, values.data() + r * width, tensor.data<std::byte>() + r * bytes, width);
  }
  return tensor;
}

Values run(const OpCase& op_case, Context& ctx, std::span<const Tensor> inputs) {
  const Tensor out = op_case.run(ctx, inputs);
  Values values(static_cast<size_t>(out.numel()));
  copy_to_host(ctx, out, values);
  return values;
}

[[noreturn]] void differ(const OpCase& op_case, const std::string& where, size_t at, double want,
                         double got) {
  throw std::runtime_error(
      fmt::format("{}: {}: element {} should be {:.9g}, is {:.9g}", op_case.name, where, at, want, got));
}

void expect_near(const OpCase& op_case, const std::string& where, std::span<const double> want,
                 const Values& got) {
  if (want.size() != got.size()) {
    throw std::runtime_error(
        fmt::format("{}: {}: {} elements, not {}", op_case.name, where, got.size(), want.size()));
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (want[i] == static_cast<double>(got[i])) continue;  // infinities too
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(error <= op_case.tol.forward * (1.0 + std::abs(want[i]))))
      differ(op_case, where, i, want[i], got[i]);
  }
}

void expect_same_bits(const OpCase& op_case, const std::string& where, const float* want, const Values& got) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(want + i, &got[i], sizeof(float)) != 0) differ(op_case, where, i, want[i], got[i]);
  }
}

// Every input with as many rows as the first is taken apart with it.
void check_rows(const OpCase& op_case, const std::string& where, Context& ctx,
                const std::vector<Tensor>& inputs, const Values& all) {
  const int64_t rows = inputs[0].dim(0);
  const size_t width = rows ? all.size() / static_cast<size_t>(rows) : 0;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<Tensor> row;
    for (const Tensor& input : inputs) row.push_back(input.dim(0) == rows ? input.rows(r, 1) : input);
    const Values alone = run(op_case, ctx, row);
    expect_same_bits(op_case, fmt::format("{}, row {} alone", where, r),
                     all.data() + static_cast<size_t>(r) * width, alone);
  }
}

void check_cuda(const OpCase& op_case, std::span<const Tensor> inputs, std::span<const double> reference) {
  if constexpr (kHasCuda) {
    std::unique_ptr<Context> ctx;
    try {
      ctx = std::make_unique<Context>(ContextOptions{.device = Device::kCuda, .threads = 1});
    } catch (const UserError&) {
      return;  // built with CUDA, run where there is no device
    }
    std::vector<Tensor> moved;
    for (const Tensor& input : inputs) moved.push_back(input.to(*ctx, Device::kCuda));
    const Values all = run(op_case, *ctx, moved);
    expect_near(op_case, "cuda", reference, all);
    if (op_case.row_invariant) check_rows(op_case, "cuda", *ctx, moved, all);
  }
}

}  // namespace

void check(const OpCase& op_case) {
  std::vector<Tensor> inputs;
  for (const OpInput& input : op_case.inputs)
    inputs.push_back(make_input(input, static_cast<uint32_t>(inputs.size())));
  const std::vector<double> reference = op_case.reference(inputs);
  for (const Isa isa : supported_isas()) {
    const ForcedIsa forced(isa);
    const std::string name = name_of(isa);
    Context one({.threads = 1});
    const Values all = run(op_case, one, inputs);
    expect_near(op_case, name, reference, all);
    for (const int threads : {2, 3}) {
      Context many({.threads = threads});
      expect_same_bits(op_case, fmt::format("{}, {} threads", name, threads), all.data(),
                       run(op_case, many, inputs));
      if (op_case.row_invariant)
        check_rows(op_case, fmt::format("{}, {} threads", name, threads), many, inputs, all);
    }
  }
  if (!op_case.cpu_only) check_cuda(op_case, inputs, reference);
}

namespace {

// Twice the input, but for what `spoil` does to it.
OpCase doubling(std::function<void(Context&, Tensor&)> spoil) {
  return {.name = "doubling",
          .inputs = {{{5, 7}}},
          .run =
              [spoil](Context& ctx, std::span<const Tensor> in) {
                Tensor out = Tensor::empty(ctx, DType::kF32, in[0].shape());
                for (int64_t i = 0; i < out.numel(); ++i) out.data<float>()[i] = 2 * in[0].data<float>()[i];
                spoil(ctx, out);
                return out;
              },
          .reference =
              [](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < in[0].numel(); ++i) out.push_back(2.0 * in[0].data<float>()[i]);
                return out;
              },
          .cpu_only = true};
}

std::string failure(const OpCase& op_case) {
  try {
    check(op_case);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(OpCase, PassesWhatIsRight) {
  EXPECT_EQ(failure(doubling([](Context&, Tensor&) {})), "");
}

TEST(OpCase, SeesAWrongValue) {
  const std::string what = failure(doubling([](Context&, Tensor& out) { out.data<float>()[0] += 1; }));
  EXPECT_NE(what.find("doubling: "), std::string::npos) << what;
  EXPECT_NE(what.find("element 0 should be"), std::string::npos) << what;
}

TEST(OpCase, SeesNaN) {
  EXPECT_NE(failure(doubling([](Context&, Tensor& out) { out.data<float>()[3] = NAN; })), "");
}

TEST(OpCase, SeesARowThatDependsOnItsNeighbours) {
  const std::string what = failure(doubling([](Context&, Tensor& out) {
    if (out.dim(0) > 1) out.data<float>()[8] = std::nextafter(out.data<float>()[8], 10.0f);
  }));
  EXPECT_NE(what.find("row 1 alone"), std::string::npos) << what;
}

TEST(OpCase, SeesAThreadCountThatMatters) {
  const std::string what = failure(doubling([](Context& ctx, Tensor& out) {
    if (ctx.pool().threads() == 3) out.data<float>()[8] = std::nextafter(out.data<float>()[8], 10.0f);
  }));
  EXPECT_NE(what.find("3 threads"), std::string::npos) << what;
}

}  // namespace
}  // namespace fathom
