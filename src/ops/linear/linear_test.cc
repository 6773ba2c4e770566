#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/rng.h"
#include "ops/kernels/op_case.h"
#include "quant/formats.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr DType kWeightTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                  DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                                  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<float> decoded_weight(const Tensor& weight) {
  const int64_t rows = weight.dim(0), width = weight.dim(1);
  std::vector<float> values(static_cast<size_t>(rows * width));
  for (int64_t r = 0; r < rows; ++r) {
    decode_row(weight.dtype(), weight.data<std::byte>() + r * row_bytes(weight.dtype(), width),
               values.data() + r * width, width);
  }
  return values;
}

std::vector<double> product(const Tensor& x, const Tensor& weight, const float* bias) {
  const std::vector<float> w = decoded_weight(weight);
  const int64_t width = x.dim(1);
  std::vector<double> out;
  for (int64_t r = 0; r < x.dim(0); ++r) {
    for (int64_t c = 0; c < weight.dim(0); ++c) {
      double sum = bias ? bias[c] : 0.0;
      for (int64_t i = 0; i < width; ++i) {
        sum +=
            static_cast<double>(x.data<float>()[r * x.stride(0) + i]) * w[static_cast<size_t>(c * width + i)];
      }
      out.push_back(sum);
    }
  }
  return out;
}

OpCase linear_case(DType dtype, int64_t rows, int64_t out, int64_t in, bool bias) {
  std::vector<OpInput> inputs = {{{rows, in}}, {{out, in}, dtype, 1.0f / std::sqrt(static_cast<float>(in))}};
  if (bias) inputs.push_back({{out}});
  // int8 activations: each is off by up to a 254th of its block's largest (about 3 of these units), so a sum
  // of `in` of them by about 0.005; bf16 ones by 2^-9 of themselves.
  const float tolerance = dtype == DType::kF32 || dtype == DType::kF16 ? 5e-6f
                          : dtype == DType::kBF16                      ? 1e-2f
                                                                       : 3e-2f;
  return {
      .name = std::string("linear ") + name_of(dtype) + " " + to_string({rows, out, in}),
      .inputs = inputs,
      .run =
          [=](Context& ctx, std::span<const Tensor> t) {
            return bias ? linear(ctx, t[0], t[1], t[2]) : linear(ctx, t[0], t[1]);
          },
      .reference =
          [=](std::span<const Tensor> t) { return product(t[0], t[1], bias ? t[2].data<float>() : nullptr); },
      .tol = {.forward = tolerance}};
}

TEST(Linear, MatchesTheDefinition) {
  for (DType dtype : kWeightTypes) {
    if (!can_encode(dtype)) continue;
    check(linear_case(dtype, 1, 70, 64, false));
    check(linear_case(dtype, 7, 131, 576, true));
    check(linear_case(dtype, 33, 64, 96, false));
  }
  check(linear_case(DType::kF32, 5, 3, 7, true));
  check(linear_case(DType::kBF16, 3, 17, 20, false));
}

// Weights with every bit pattern, but scales of ordinary size.
Tensor random_weight(DType dtype, int64_t out, int64_t in) {
  Rng rng(5, {static_cast<uint32_t>(dtype), 0, 0});
  Tensor weight = Tensor::owned(Device::kCpu, dtype, {out, in});
  const int64_t stride = row_bytes(dtype, in), block_bytes = traits(dtype).block_bytes;
  auto* bytes = weight.data<uint8_t>();
  if (can_encode(dtype)) {
    std::vector<float> row(static_cast<size_t>(in));
    for (int64_t r = 0; r < out; ++r) {
      for (float& value : row) value = rng.normal() * 0.1f;
      encode_row(dtype, row.data(), bytes + r * stride, in);
    }
    return weight;
  }
  for (int64_t i = 0; i < out * stride; ++i) bytes[i] = static_cast<uint8_t>(rng.next_u32());
  // The f16 scales of a super-block are its first four bytes (q4_k, q5_k) or its last ones.
  const int64_t at =
      dtype == DType::kQ4_K || dtype == DType::kQ5_K ? 0 : block_bytes - (dtype == DType::kQ2_K ? 4 : 2);
  const int64_t halves = dtype == DType::kQ3_K || dtype == DType::kQ6_K ? 1 : 2;
  for (int64_t b = 0; b < out * stride / block_bytes; ++b) {
    for (int64_t i = 0; i < halves; ++i) {
      const auto half = static_cast<uint16_t>(0x1000 + rng.below(0x800));
      std::memcpy(bytes + b * block_bytes + at + 2 * i, &half, 2);
    }
  }
  return weight;
}

Tensor random_rows(int64_t rows, int64_t width) {
  Rng rng(9);
  Tensor x = Tensor::owned(Device::kCpu, DType::kF32, {rows, width});
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = rng.normal() * (i % 61 == 0 ? 15.0f : 1.0f);
  return x;
}

std::vector<float> floats_of(const Tensor& t) {
  return {t.data<float>(), t.data<float>() + t.numel()};
}

// The rows in chunks of `chunk`, with so many threads.
std::vector<float> run_in_chunks(const Tensor& x, const Tensor& weight, const Tensor& bias, int threads,
                                 int64_t chunk) {
  Context ctx({.threads = threads});
  std::vector<float> out;
  for (int64_t r = 0; r < x.dim(0); r += chunk) {
    const Tensor part = linear(ctx, x.rows(r, std::min(chunk, x.dim(0) - r)), weight, bias);
    out.insert(out.end(), part.data<float>(), part.data<float>() + part.numel());
  }
  return out;
}

class WithIsa {
 public:
  explicit WithIsa(Isa isa) { setenv("FATHOM_ISA", name_of(isa), 1); }
  ~WithIsa() { unsetenv("FATHOM_ISA"); }
};

TEST(Linear, ARowsBitsDependOnThatRowAlone) {
  for (Isa isa : supported_isas()) {
    const WithIsa forced(isa);
    for (DType dtype : kWeightTypes) {
      const int64_t in = traits(dtype).block == 256 ? 512 : 288;
      const Tensor x = random_rows(isa == Isa::kScalar ? 11 : 70, in), weight = random_weight(dtype, 203, in);
      Tensor bias = random_rows(1, 203).reshape({203});
      const std::vector<float> all = run_in_chunks(x, weight, bias, 1, x.dim(0));
      for (int threads : {1, 2, 3}) {
        for (int64_t chunk :
             {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, int64_t{8}, int64_t{17}, x.dim(0)}) {
          const std::vector<float> got = run_in_chunks(x, weight, bias, threads, chunk);
          ASSERT_EQ(std::memcmp(got.data(), all.data(), all.size() * 4), 0)
              << name_of(isa) << " " << name_of(dtype) << ", " << threads << " threads, chunks of " << chunk;
        }
      }
    }
  }
}

TEST(Linear, SuperBlockFormatsMatchTheDefinition) {
  for (DType dtype : {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    const Tensor x = random_rows(5, 768), weight = random_weight(dtype, 37, 768);
    Context ctx({.threads = 2});
    const std::vector<float> got = floats_of(linear(ctx, x, weight));
    const std::vector<double> want = product(x, weight, nullptr);
    double size =
        0.0;  // the rows hold outliers: int8 blocks keep about 2 % of the size (bounds: kernel_checks)
    for (double value : want) size += value * value / static_cast<double>(want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 0.12 * std::sqrt(size)) << name_of(dtype) << i;
  }
}

TEST(Linear, AGroupIsItsMembers) {
  Context ctx({.threads = 3});
  const Tensor bias = random_rows(1, 40).reshape({40});
  // Together: all int8; int8 with f32; int8 with bf16, which cannot share a preparation.
  for (DType second : {DType::kQ8_0, DType::kF32, DType::kBF16}) {
    const Tensor weights[] = {random_weight(DType::kQ4_1, 100, 96), random_weight(second, 40, 96),
                              random_weight(DType::kQ5_0, 40, 96)};
    const Tensor biases[] = {{}, bias, {}};
    for (int64_t rows : {1, 6}) {
      const Tensor x = random_rows(rows, 96);
      Tensor outputs[3];
      linear_group(ctx, x, weights, biases, outputs);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(floats_of(outputs[i]), floats_of(linear(ctx, x, weights[i], biases[i])))
            << name_of(second) << " " << i;
      }
    }
  }
}

TEST(Linear, StridedRowsAreRows) {
  Context ctx({.threads = 2});
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    const Tensor wide = random_rows(6, 160), weight = random_weight(dtype, 50, 64);
    const Tensor part = wide.columns(32, 64);
    Tensor dense = Tensor::owned(Device::kCpu, DType::kF32, {6, 64});
    for (int64_t r = 0; r < 6; ++r)
      std::memcpy(dense.data<float>() + 64 * r, wide.data<float>() + 160 * r + 32, 256);
    EXPECT_EQ(floats_of(linear(ctx, part, weight)), floats_of(linear(ctx, dense, weight))) << name_of(dtype);
    EXPECT_EQ(floats_of(linear(ctx, part.rows(4, 1), weight)),
              floats_of(linear(ctx, dense.rows(4, 1), weight)));
  }
}

TEST(Linear, NoRowsOneBlockAndValuesThatAreNotFinite) {
  Context ctx({.threads = 2});
  for (DType dtype : kWeightTypes) {
    const int64_t in = traits(dtype).block == 1 ? 1 : traits(dtype).block;
    const Tensor weight = random_weight(dtype, 5, in);
    EXPECT_EQ(linear(ctx, random_rows(0, in), weight).shape(), (Shape{0, 5}));
    Tensor x = random_rows(3, in);
    x.data<float>()[in] = NAN;
    const std::vector<float> out = floats_of(linear(ctx, x, weight));
    for (size_t i = 0; i < out.size(); ++i)
      EXPECT_EQ(std::isnan(out[i]), i / 5 == 1) << name_of(dtype) << " " << i;
  }
}

TEST(Linear, CountsItsWork) {
  Context ctx({.threads = 2});
  const Tensor weight = random_weight(DType::kQ8_0, 70, 64), x = random_rows(3, 64);
  const Work before = ctx.counters().total();
  linear(ctx, x, weight);
  const Work work = ctx.counters().total() - before;
  EXPECT_EQ(work.madds, 3u * 70 * 64);
  EXPECT_EQ(work.weight_bytes, 70u * 2 * 34);
}

TEST(Linear, ASteadyCallTakesNoMemory) {
  Context ctx({.threads = 2});
  const Tensor weight = random_weight(DType::kQ4_1, 200, 576), x = random_rows(33, 576);
  {
    const ArenaScope scope(ctx);
    linear(ctx, x, weight);
  }
  const size_t before = ctx.arena().capacity();
  for (int i = 0; i < 3; ++i) {
    const ArenaScope scope(ctx);
    linear(ctx, x, weight);
  }
  EXPECT_EQ(ctx.arena().capacity(), before);
}

TEST(Linear, WrongOperandsAreNamed) {
  Context ctx({.threads = 1});
  const Tensor x = random_rows(2, 64);
  try {
    linear(ctx, x, random_weight(DType::kQ8_0, 8, 32));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "linear: weight must be (out, 64), got q8_0 (8, 32)");
  }
  EXPECT_THROW(linear(ctx, Tensor::owned(Device::kCpu, DType::kBF16, {2, 64}), x), UserError);
  EXPECT_THROW(linear(ctx, x, Tensor::owned(Device::kCpu, DType::kI32, {2, 64})), UserError);
  EXPECT_THROW(linear(ctx, x, x, random_rows(1, 3)), UserError);
  EXPECT_THROW(linear(ctx, {}, x), UserError);
}

}  // namespace
}  // namespace fathom
