#include "ops/linear/low_rank.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "ops/kernels/every_device_test.h"
#include "quant/formats.h"
#include "quant/half.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kOut = 70, kIn = 50, kRank = 5;
constexpr float kScale = 0.75f;

std::vector<float> normal_floats(int64_t count, uint32_t stream) {
  Rng rng(3, {stream, 0, 0});
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = rng.normal();
  return values;
}

// A (rank, in) and B (out, rank) in plain loops.
double product_at(const std::vector<float>& a, const std::vector<float>& b, int64_t row, int64_t column) {
  double sum = 0;
  for (int64_t r = 0; r < kRank; ++r)
    sum += static_cast<double>(b[static_cast<size_t>(row * kRank + r)]) *
           static_cast<double>(a[static_cast<size_t>(r * kIn + column)]);
  return sum;
}

TEST(LowRank, IsAddedToTheMatrixAndRoundedOnce) {
  const std::vector<float> w = normal_floats(kOut * kIn, 0), a = normal_floats(kRank * kIn, 1),
                           b = normal_floats(kOut * kRank, 2);
  Tensor host = Tensor::owned(Device::kCpu, DType::kBF16, {kOut, kIn});
  for (size_t i = 0; i < w.size(); ++i) host.data<uint16_t>()[i] = bf16_of_f32(w[i]);
  for (const auto& ctx : every_device()) {
    const ArenaScope scope(*ctx);
    const Tensor base = host.to(*ctx, ctx->device());
    Tensor merged = Tensor::owned(ctx->device(), DType::kBF16, {kOut, kIn});
    merge_low_rank(*ctx, base, Tensor::from(*ctx, a, {kRank, kIn}), Tensor::from(*ctx, b, {kOut, kRank}),
                   kScale, MergeRounding::kNone, merged);
    const Tensor got = merged.to(*ctx, Device::kCpu);
    for (int64_t i = 0; i < kOut * kIn; ++i) {
      const double want = static_cast<double>(f32_of_bf16(host.data<uint16_t>()[i])) +
                          static_cast<double>(kScale) * product_at(a, b, i / kIn, i % kIn);
      EXPECT_NEAR(static_cast<double>(f32_of_bf16(got.data<uint16_t>()[i])), want,
                  (1.0 / 256 + 1e-5) * (std::abs(want) + 1e-3))
          << i;
    }
  }
}

// Rounded to q4_1, a matrix is what decoding its encoded rows gives, bit by bit on every device; f32 and
// bf16.
TEST(LowRank, IsRoundedToWhatABlockFormatHolds) {
  constexpr int64_t kWide = 96;  // three blocks
  const std::vector<float> w = normal_floats(kOut * kWide, 0), a(kRank * kWide, 0.0f),
                           b = normal_floats(kOut * kRank, 2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Tensor host = Tensor::owned(Device::kCpu, type, {kOut, kWide});
    std::vector<float> want(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      const float value = i / 32 % 7 == 3 ? 0.25f : w[i];  // some blocks of one value
      want[i] = type == DType::kF32 ? value : f32_of_bf16(bf16_of_f32(value));
      if (type == DType::kF32) host.data<float>()[i] = value;
      if (type == DType::kBF16) host.data<uint16_t>()[i] = bf16_of_f32(value);
    }
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(DType::kQ4_1, kWide)));
    for (int64_t r = 0; r < kOut; ++r) {
      encode_row(DType::kQ4_1, want.data() + r * kWide, row.data(), kWide);
      decode_row(DType::kQ4_1, row.data(), want.data() + r * kWide, kWide);
    }
    for (const auto& ctx : every_device()) {
      const ArenaScope scope(*ctx);
      Tensor merged = Tensor::owned(ctx->device(), type, {kOut, kWide});
      merge_low_rank(*ctx, host.to(*ctx, ctx->device()), Tensor::from(*ctx, a, {kRank, kWide}),
                     Tensor::from(*ctx, b, {kOut, kRank}), kScale, MergeRounding::kQ4_1, merged);
      const Tensor got = merged.to(*ctx, Device::kCpu);
      for (size_t i = 0; i < want.size(); ++i) {
        if (type == DType::kF32)
          ASSERT_EQ(got.data<float>()[i], want[i]) << i;
        else
          ASSERT_EQ(got.data<uint16_t>()[i], bf16_of_f32(want[i])) << i;
      }
    }
  }
}

TEST(LowRank, RowsOfHalfABlockAreNotRounded) {
  Context ctx;
  const ArenaScope scope(ctx);
  const Tensor w = Tensor::from(ctx, normal_floats(kOut * kIn, 0), {kOut, kIn});
  Tensor out = Tensor::empty(ctx, DType::kF32, {kOut, kIn});
  EXPECT_THROW(merge_low_rank(ctx, w, Tensor::from(ctx, normal_floats(kRank * kIn, 1), {kRank, kIn}),
                              Tensor::from(ctx, normal_floats(kOut * kRank, 2), {kOut, kRank}), kScale,
                              MergeRounding::kQ4_1, out),
               UserError);
}

// The gradient of Σ dw · (scale · B A) by a and b.
TEST(LowRank, GradientsGoBackToTheFactorsAndAddUp) {
  const std::vector<float> dw = normal_floats(kOut * kIn, 4), a = normal_floats(kRank * kIn, 1),
                           b = normal_floats(kOut * kRank, 2);
  for (const auto& ctx : every_device()) {
    const ArenaScope scope(*ctx);
    Tensor da = Tensor::from(*ctx, std::vector<float>(a.size(), 1.0f), {kRank, kIn});
    Tensor db = Tensor::from(*ctx, std::vector<float>(b.size(), -1.0f), {kOut, kRank});
    split_low_rank(*ctx, Tensor::from(*ctx, dw, {kOut, kIn}), Tensor::from(*ctx, a, {kRank, kIn}),
                   Tensor::from(*ctx, b, {kOut, kRank}), kScale, da, db);
    std::vector<float> got_a(a.size()), got_b(b.size());
    copy_to_host(*ctx, da, got_a);
    copy_to_host(*ctx, db, got_b);
    for (int64_t r = 0; r < kRank; ++r) {
      for (int64_t i = 0; i < kIn; ++i) {
        double sum = 0;
        for (int64_t o = 0; o < kOut; ++o)
          sum += static_cast<double>(b[static_cast<size_t>(o * kRank + r)]) *
                 static_cast<double>(dw[static_cast<size_t>(o * kIn + i)]);
        EXPECT_NEAR(got_a[static_cast<size_t>(r * kIn + i)], 1 + kScale * sum, 1e-4);
      }
      for (int64_t o = 0; o < kOut; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < kIn; ++i)
          sum += static_cast<double>(a[static_cast<size_t>(r * kIn + i)]) *
                 static_cast<double>(dw[static_cast<size_t>(o * kIn + i)]);
        EXPECT_NEAR(got_b[static_cast<size_t>(o * kRank + r)], -1 + kScale * sum, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace fathom
