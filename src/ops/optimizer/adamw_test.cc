#include "ops/optimizer/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "ops/kernels/every_device_test.h"

namespace fathom {
namespace {

using Floats = std::vector<float>;

struct AdamCase {
  Floats value, gradient, mean, square;
  std::vector<AdamWSegment> segments;
  AdamWParams params{0.9f, 0.95f, 1e-8f, 1.3f, 0.37f};

  explicit AdamCase(size_t size) {
    Rng rng(9);
    for (Floats* values : {&value, &gradient, &mean, &square}) {
      values->resize(size);
      for (float& one : *values) one = rng.normal();
    }
    for (float& one : square) one = std::abs(one);
  }
};

struct AdamResult {
  Floats value, mean, square;
};

AdamResult run(Context& ctx, const AdamCase& c) {
  const Shape shape{static_cast<int64_t>(c.value.size())};
  AdamWBuffers buffers{Tensor::from(ctx, c.value, shape), Tensor::from(ctx, c.gradient, shape),
                       Tensor::from(ctx, c.mean, shape), Tensor::from(ctx, c.square, shape)};
  adamw(ctx, buffers, c.segments, c.params);
  AdamResult out{c.value, c.mean, c.square};
  copy_to_host(ctx, buffers.value, out.value);
  copy_to_host(ctx, buffers.mean, out.mean);
  copy_to_host(ctx, buffers.square, out.square);
  return out;
}

bool same_floats(const Floats& a, const Floats& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Against the formulas in f64, and the same bits on every device.
TEST(AdamW, MovesTheElementsOfItsSegments) {
  AdamCase c(20000);
  c.segments = {{0, 5, 0.1f, 0.9f}, {16, 16, 9, 9}, {16, 9001, 0.01f, 1}, {12000, 20000, 0.2f, 0.5f}};
  AdamResult first;
  for (const auto& ctx : every_device()) {
    const AdamResult got = run(*ctx, c);
    if (first.value.empty()) first = got;
    EXPECT_TRUE(same_floats(got.value, first.value)) << name_of(ctx->device());
    EXPECT_TRUE(same_floats(got.mean, first.mean)) << name_of(ctx->device());
    EXPECT_TRUE(same_floats(got.square, first.square)) << name_of(ctx->device());
  }
  AdamResult want{c.value, c.mean, c.square};
  for (const AdamWSegment& segment : c.segments) {
    for (auto i = static_cast<size_t>(segment.begin); i < static_cast<size_t>(segment.end); ++i) {
      const double g = double{c.gradient[i]} * 0.37, mean = 0.9 * double{c.mean[i]} + 0.1 * g,
                   square = 0.95 * double{c.square[i]} + 0.05 * g * g;
      want.mean[i] = static_cast<float>(mean);
      want.square[i] = static_cast<float>(square);
      want.value[i] = static_cast<float>(double{c.value[i]} * double{segment.keep} -
                                         double{segment.rate} * mean / (std::sqrt(square) * 1.3 + 1e-8));
    }
  }
  for (size_t i = 0; i < want.value.size(); ++i) {
    ASSERT_NEAR(first.value[i], want.value[i], 1e-5 * (1 + std::abs(want.value[i]))) << i;
    ASSERT_NEAR(first.mean[i], want.mean[i], 1e-6) << i;
    ASSERT_NEAR(first.square[i], want.square[i], 1e-6) << i;
  }
}

// More segments than one launch takes.
TEST(AdamW, TakesManySegments) {
  AdamCase c(300 * 64);
  for (int64_t i = 0; i < 300; ++i)
    c.segments.push_back({i * 64, i * 64 + 1 + i % 64, 0.001f * static_cast<float>(i), 1});
  AdamResult first;
  for (const auto& ctx : every_device()) {
    const AdamResult got = run(*ctx, c);
    if (first.value.empty()) first = got;
    EXPECT_TRUE(same_floats(got.value, first.value)) << name_of(ctx->device());
    for (size_t i = 0; i < c.value.size(); ++i)
      ASSERT_EQ(got.mean[i] != c.mean[i], i % 64 <= i / 64 % 64) << i;
  }
}

TEST(AdamW, RefusesWhatDoesNotFit) {
  Context ctx({.threads = 1});
  for (const AdamWSegment& wrong : {AdamWSegment{2, 8, 1, 1}, {0, 65, 1, 1}, {8, 4, 1, 1}, {-4, 4, 1, 1}}) {
    AdamCase c(64);
    c.segments = {wrong};
    EXPECT_THROW(run(ctx, c), UserError) << wrong.begin;
  }
  AdamCase c(64);
  c.mean.resize(60);
  EXPECT_THROW(run(ctx, c), UserError);
}

}  // namespace
}  // namespace fathom
