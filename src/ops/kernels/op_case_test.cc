// The checks behind op_case.h, and that they can fail.
#include "ops/kernels/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/format.h"
#include "base/rng.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/fill.h"
#include "quant/formats.h"
#include "quant/half.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

using Numbers = std::vector<float>;

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
  Numbers values(static_cast<size_t>(n));
  for (float& value : values) value = rng.normal() * input.scale;
  const int64_t width = input.shape.last(), bytes = row_bytes(input.dtype, width);
  for (int64_t r = 0; width > 0 && r < n / width; ++r) {
    encode_row(input.dtype, values.data() + r * width, tensor.data<std::byte>() + r * bytes, width);
  }
  return tensor;
}

// On the context's device.
std::vector<Tensor> moved(Context& ctx, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> there;
  for (const Tensor& input : inputs) there.push_back(input.to(ctx, ctx.device()));
  return there;
}

Numbers run(const OpCase& op_case, Context& ctx, std::span<const Tensor> inputs) {
  const Tensor out = op_case.run(ctx, inputs);
  Numbers values(static_cast<size_t>(out.numel()));
  copy_to_host(ctx, out, values);
  return values;
}

[[noreturn]] void differ(const OpCase& op_case, const std::string& where, size_t at, double want,
                         double got) {
  throw std::runtime_error(
      fmt::format("{}: {}: element {} should be {:.9g}, is {:.9g}", op_case.name, where, at, want, got));
}

void expect_near(const OpCase& op_case, const std::string& where, std::span<const double> want,
                 const Numbers& got) {
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

void expect_same_bits(const OpCase& op_case, const std::string& where, const float* want,
                      const Numbers& got) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(want + i, &got[i], sizeof(float)) != 0) differ(op_case, where, i, want[i], got[i]);
  }
}

// Every input with as many rows as the first is taken apart with it.
void check_rows(const OpCase& op_case, const std::string& where, Context& ctx,
                const std::vector<Tensor>& inputs, const Numbers& all) {
  const int64_t rows = inputs[0].dim(0);
  const size_t width = rows ? all.size() / static_cast<size_t>(rows) : 0;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<Tensor> row;
    for (const Tensor& input : inputs) row.push_back(input.dim(0) == rows ? input.rows(r, 1) : input);
    const Numbers alone = run(op_case, ctx, row);
    expect_same_bits(op_case, fmt::format("{}, row {} alone", where, r),
                     all.data() + static_cast<size_t>(r) * width, alone);
  }
}

void check_values(const OpCase& op_case, const std::string& where, Device device,
                  const std::vector<Tensor>& inputs, std::span<const double> reference) {
  Context one({.device = device, .threads = 1});
  const std::vector<Tensor> there = moved(one, inputs);
  const Numbers all = run(op_case, one, there);
  expect_near(op_case, where, reference, all);
  for (const int threads : {2, 3}) {
    Context many({.device = device, .threads = threads});
    const std::string with = fmt::format("{}, {} threads", where, threads);
    expect_same_bits(op_case, with, all.data(), run(op_case, many, there));
    // The guarded device's kernels are the CPU's.
    if (op_case.row_invariant && device != Device::kGuarded) check_rows(op_case, with, many, there, all);
  }
}

// The gradients of Σ out · r.
class GradientCheck {
 public:
  GradientCheck(const OpCase& op_case, std::vector<Tensor> inputs, size_t outputs)
      : op_case_(op_case), inputs_(std::move(inputs)), which_(op_case.differentiable) {
    for (size_t i = 0; op_case.differentiable.empty() && i < inputs_.size(); ++i)
      if (inputs_[i].dtype() == DType::kF32) which_.push_back(i);
    Rng rng(77);
    for (size_t i = 0; i < outputs; ++i) random_.push_back(rng.normal());
    for (const size_t i : which_) quotients_.push_back(difference_quotients(i));
  }

  void check(const std::string& place, Device device) const {
    std::vector<Numbers> first;
    for (const int threads : {1, 2, 3}) {
      Context ctx({.device = device, .threads = threads});
      const std::string where = fmt::format("{}, {} threads", place, threads);
      const std::vector<Numbers> fresh = gradients(ctx, false), added = gradients(ctx, true);
      for (size_t i = 0; i < which_.size(); ++i) {
        const std::string what = fmt::format("{}, gradient of input {}", where, which_[i]);
        compare(what, quotients_[i], fresh[i], 0.0f);
        compare(what + " added to another", quotients_[i], added[i], kThere);
        if (threads > 1) expect_same_bits(op_case_, what, first[i].data(), fresh[i]);
      }
      if (threads == 1) first = fresh;
    }
  }

 private:
  static constexpr float kThere = 0.5f;  // a gradient that arrived earlier
  struct Quotient {
    size_t element;
    double value;
  };

  double loss() const {
    const std::vector<double> out = op_case_.reference(inputs_);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * static_cast<double>(random_[i]);
    return sum;
  }

  std::vector<Quotient> difference_quotients(size_t input) {
    constexpr int64_t kMost = 48;
    Tensor x = inputs_[input];
    const int64_t n = x.numel();
    const float size = std::min(1.0f, op_case_.inputs[input].scale);
    std::vector<Quotient> out;
    for (int64_t k = 0; k < std::min(n, kMost); ++k) {
      const int64_t i = n <= kMost ? k : k * (n - 1) / (kMost - 1);  // both ends, and all over
      const float at = x.data<float>()[i], step = 1e-3f * std::max(size, std::abs(at));
      const float above = at + step, below = at - step;
      x.data<float>()[i] = above;
      const double more = loss();
      x.data<float>()[i] = below;
      const double less = loss();
      x.data<float>()[i] = at;
      out.push_back({static_cast<size_t>(i), (more - less) / (double{above} - double{below})});
    }
    return out;
  }

  // The tape's memory has held NaN: what nobody wrote must not be read.
  static void poison(Context& ctx, const std::vector<Tensor>& like) {
    std::vector<Tensor> blocks;
    for (const Tensor& each : like) {
      for (int copy = 0; copy < 6; ++copy) {
        blocks.push_back(Tensor::empty(ctx, DType::kF32, each.shape()));
        fill(ctx, blocks.back(), NAN);
      }
    }
  }

  std::vector<Numbers> gradients(Context& ctx, bool there) const {
    const ArenaScope scope(ctx);
    Tape tape(ctx.device());
    const TapeScope taped(ctx, tape);
    poison(ctx, inputs_);
    std::vector<Tensor> inputs = moved(ctx, inputs_);
    for (const size_t i : which_) {
      Tensor sum = Tensor::owned(ctx.device(), DType::kF32, inputs[i].shape());
      fill(ctx, sum, kThere);
      inputs[i] = there ? parameter(inputs[i], sum) : inputs[i].with_gradient(std::make_shared<Gradient>());
    }
    {
      const Tensor out = op_case_.run(ctx, inputs);
      const Tensor r = Tensor::from(ctx, random_, out.shape());
      Tensor loss = Tensor::owned(ctx.device(), DType::kF32, {1});
      differentiate(ctx, {&out}, loss, [out, r](Context& c, const Tensor&) { accumulate(c, out, r); });
      tape.backward(ctx, loss);
    }
    std::vector<Numbers> values;
    for (const size_t i : which_) {
      const Tensor& sum = inputs[i].gradient()->value;
      values.emplace_back(static_cast<size_t>(inputs[i].numel()));
      if (sum) copy_to_host(ctx, sum, values.back());
    }
    return values;
  }

  void compare(const std::string& where, const std::vector<Quotient>& want, const Numbers& got,
               float there) const {
    for (const Quotient& quotient : want) {
      const double value = double{got[quotient.element]} - double{there};
      const double error = std::abs(value - quotient.value);
      if (!(error <= op_case_.tol.grad * (1.0 + std::abs(quotient.value))))
        differ(op_case_, where, quotient.element, quotient.value, value);
    }
    for (size_t i = 0; i < got.size(); ++i)
      if (!std::isfinite(got[i])) differ(op_case_, where, i, 0, got[i]);
  }

  const OpCase& op_case_;
  std::vector<Tensor> inputs_;
  std::vector<size_t> which_;
  Numbers random_;
  std::vector<std::vector<Quotient>> quotients_;
};

// What the device's kernels are checked by. The guarded device's are the CPU's, each checked there.
std::vector<Isa> isas_of(Device device) {
  const std::vector<Isa> isas = supported_isas();
  return device == Device::kCpu ? isas : std::vector<Isa>{isas.front()};
}

}  // namespace

const std::vector<Device>& devices_to_check() {
  static const std::vector<Device> kDevices = [] {
    const char* only = std::getenv("FATHOM_CHECK_DEVICES");
    if (only && std::string_view(only) != "cuda") fail("FATHOM_CHECK_DEVICES must be cuda, got {}", only);
    std::vector<Device> devices;
    if (!only) devices = {Device::kCpu, Device::kGuarded};
    try {
      const Context ctx({.device = Device::kCuda, .threads = 1});
      devices.push_back(Device::kCuda);
    } catch (const UserError&) {  // built without CUDA, or run where there is no device
      if (only) throw;
    }
    return devices;
  }();
  return kDevices;
}

void check(const OpCase& op_case) {
  std::vector<Tensor> inputs;
  for (const OpInput& input : op_case.inputs)
    inputs.push_back(make_input(input, static_cast<uint32_t>(inputs.size())));
  const std::vector<double> reference = op_case.reference(inputs);
  std::unique_ptr<const GradientCheck> gradients;
  if (op_case.tol.grad > 0) gradients = std::make_unique<GradientCheck>(op_case, inputs, reference.size());
  for (const Device device : devices_to_check()) {
    if (op_case.cpu_only && device != Device::kCpu) continue;
    for (const Isa isa : isas_of(device)) {
      const ForcedIsa forced(isa);
      const std::string where = fmt::format("{}, {}", name_of(device), name_of(isa));
      check_values(op_case, where, device, inputs, reference);
      if (gradients) gradients->check(where, device);
    }
  }
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

// Squares, and a gradient for `backward` to get wrong.
OpCase squaring(std::function<void(Context&, const Tensor& x, const Tensor& d)> backward) {
  return {.name = "squaring",
          .inputs = {{{5, 7}}},
          .run =
              [backward](Context& ctx, std::span<const Tensor> in) {
                Tensor out = Tensor::empty(ctx, DType::kF32, in[0].shape());
                for (int64_t i = 0; i < out.numel(); ++i)
                  out.data<float>()[i] = in[0].data<float>()[i] * in[0].data<float>()[i];
                differentiate(ctx, {&in[0]}, out,
                              [x = in[0], backward](Context& c, const Tensor& d) { backward(c, x, d); });
                return out;
              },
          .reference =
              [](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < in[0].numel(); ++i)
                  out.push_back(double{in[0].data<float>()[i]} * double{in[0].data<float>()[i]});
                return out;
              },
          .tol = {.grad = 1e-5f},
          .cpu_only = true};
}

Tensor twice_x_d(Context& ctx, const Tensor& x, const Tensor& d) {
  Tensor dx = Tensor::empty(ctx, DType::kF32, x.shape());
  for (int64_t i = 0; i < x.numel(); ++i) dx.data<float>()[i] = 2 * x.data<float>()[i] * d.data<float>()[i];
  return dx;
}

TEST(OpCase, PassesARightGradient) {
  EXPECT_EQ(failure(squaring([](Context& ctx, const Tensor& x, const Tensor& d) {
              accumulate(ctx, x, twice_x_d(ctx, x, d));
            })),
            "");
}

TEST(OpCase, SeesAWrongGradient) {
  const std::string what = failure(squaring([](Context& ctx, const Tensor& x, const Tensor& d) {
    Tensor dx = twice_x_d(ctx, x, d);
    dx.data<float>()[34] *= 1.001f;
    accumulate(ctx, x, dx);
  }));
  EXPECT_NE(what.find("gradient of input 0: element 34 should be"), std::string::npos) << what;
  EXPECT_NE(failure(squaring([](Context&, const Tensor&, const Tensor&) {})), "");
}

TEST(OpCase, SeesAGradientThatForgetsWhatWasThere) {
  const std::string what = failure(squaring(
      [](Context& ctx, const Tensor& x, const Tensor& d) { x.gradient()->value = twice_x_d(ctx, x, d); }));
  EXPECT_NE(what.find("added to another"), std::string::npos) << what;
}

TEST(OpCase, SeesAGradientOfMemoryThatNobodyWrote) {
  EXPECT_NE(failure(squaring([](Context& ctx, const Tensor& x, const Tensor& d) {
              Tensor dx = twice_x_d(ctx, x, d);
              const Tensor other = Tensor::empty(ctx, DType::kF32, x.shape());
              dx.data<float>()[8] += 0 * other.data<float>()[8];
              accumulate(ctx, x, dx);
            })),
            "");
}

TEST(OpCase, SeesAGradientThatThreadsChange) {
  const std::string what = failure(squaring([](Context& ctx, const Tensor& x, const Tensor& d) {
    Tensor dx = twice_x_d(ctx, x, d);
    if (ctx.pool().threads() == 2) dx.data<float>()[8] = std::nextafter(dx.data<float>()[8], 1e9f);
    accumulate(ctx, x, dx);
  }));
  EXPECT_NE(what.find("2 threads, gradient of input 0"), std::string::npos) << what;
}

}  // namespace
}  // namespace fathom
