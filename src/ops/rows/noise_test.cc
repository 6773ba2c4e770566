#include "ops/rows/noise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "ops/kernels/gpu_test.h"
#include "ops/kernels/kept_rows_test.h"

namespace fathom {
namespace {

TEST(UniformNoise, IsPhiloxOfItsArguments) {
  Context ctx({.threads = 2});
  const Tensor got = uniform_noise(ctx, 0x123456789ABCDEFull, 7, 9, ints(ctx, {3, -1}), ints(ctx, {100, 5}));
  const std::array<uint32_t, 2> key{0x89ABCDEFu, 0x1234567u};
  EXPECT_EQ(got.data<float>()[0],
            (static_cast<float>(philox({7, 9, 3, 100}, key)[0] >> 9) + 0.5f) / 8388608.0f);
  EXPECT_EQ(got.data<float>()[1],
            (static_cast<float>(philox({7, 9, 0xFFFFFFFFu, 5}, key)[0] >> 9) + 0.5f) / 8388608.0f);
}

TEST(UniformNoise, DependsOnTheRowsKeyAndPositionNotOnItsPlace) {
  Context ctx({.threads = 1});
  const std::vector<float> a =
      values_of(uniform_noise(ctx, 1, 2, 3, ints(ctx, {5, 6, 7}), ints(ctx, {0, 1, 2})));
  const std::vector<float> b = values_of(uniform_noise(ctx, 1, 2, 3, ints(ctx, {7, 5}), ints(ctx, {2, 0})));
  EXPECT_EQ(b, (std::vector<float>{a[2], a[0]}));
  EXPECT_NE(values_of(uniform_noise(ctx, 2, 2, 3, ints(ctx, {5}), ints(ctx, {0})))[0], a[0]);
  EXPECT_NE(values_of(uniform_noise(ctx, 1, 3, 3, ints(ctx, {5}), ints(ctx, {0})))[0], a[0]);
  EXPECT_NE(values_of(uniform_noise(ctx, 1, 2, 4, ints(ctx, {5}), ints(ctx, {0})))[0], a[0]);
  EXPECT_NE(values_of(uniform_noise(ctx, 1, 2, 3, ints(ctx, {5}), ints(ctx, {1})))[0], a[0]);
}

std::vector<float> many(Context& ctx) {
  std::vector<int32_t> keys(20000, 4), positions;
  for (int32_t i = 0; i < 20000; ++i) positions.push_back(i);
  std::vector<float> values(20000);
  copy_to_host(ctx, uniform_noise(ctx, 11, 0, 0, ints(ctx, keys), ints(ctx, positions)), values);
  return values;
}

TEST(UniformNoise, IsUniformAndInside) {
  Context ctx({.threads = 1});
  double sum = 0, squares = 0;
  for (const float value : many(ctx)) {
    ASSERT_GT(value, 0.0f);
    ASSERT_LT(value, 1.0f);
    sum += value;
    squares += double{value} * value;
  }
  EXPECT_NEAR(sum / 20000, 0.5, 0.01);
  EXPECT_NEAR(squares / 20000 - std::pow(sum / 20000, 2), 1.0 / 12, 0.003);
}

TEST(UniformNoise, CudaGivesTheSameBits) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  Context gpu({.device = Device::kCuda, .threads = 1}), cpu({.threads = 1});
  EXPECT_EQ(many(gpu), many(cpu));
}

TEST(UniformNoise, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  EXPECT_EQ(refusal([&] {
              uniform_noise(ctx, 0, 0, 0, ints(ctx, {1, 2}), ints(ctx, {1}));
            }),
            "uniform_noise: positions must be i32 (2), got i32 (1)");
  EXPECT_NE(refusal([&] { uniform_noise(ctx, 0, 0, 0, floats(ctx, {1}), ints(ctx, {1})); }), "");
  EXPECT_EQ(uniform_noise(ctx, 0, 0, 0, ints(ctx, {}), ints(ctx, {})).numel(), 0);
}

}  // namespace
}  // namespace fathom
