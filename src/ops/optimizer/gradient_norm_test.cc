#include "ops/optimizer/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "ops/kernels/every_device_test.h"

namespace fathom {
namespace {

double norm(Context& ctx, const std::vector<float>& values) {
  const Tensor words = gradient_norm(ctx, Tensor::from(ctx, values, {static_cast<int64_t>(values.size())}));
  const std::vector<Scalar> read = read_scalars(ctx, std::array{words.rows(0, 1), words.rows(1, 1)});
  return norm_of(read[0], read[1]);
}

TEST(GradientNorm, IsTheRootOfTheSumOfSquares) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{123457}}) {
    Rng rng(size);
    std::vector<float> values(size);
    for (float& value : values) value = rng.normal();
    double sum = 0;
    for (const float value : values) sum += double{value} * double{value};
    double on_cpu_alone = -1;
    for (const auto& ctx : every_device()) {
      const double got = norm(*ctx, values);
      EXPECT_NEAR(got, std::sqrt(sum), 1e-12 * std::sqrt(sum)) << name_of(ctx->device()) << " " << size;
      if (ctx->device() == Device::kCuda) {
        EXPECT_EQ(norm(*ctx, values), got) << "again";
        continue;
      }
      if (on_cpu_alone < 0) on_cpu_alone = got;
      EXPECT_EQ(got, on_cpu_alone) << name_of(ctx->device()) << " " << size;  // whatever the threads
    }
  }
}

TEST(GradientNorm, HoldsWhatAnF32CannotAndTellsWhatIsNoNumber) {
  for (const auto& ctx : every_device()) {
    EXPECT_NEAR(norm(*ctx, std::vector<float>(10000, 1e30f)), 1e32, 1e26) << name_of(ctx->device());
    std::vector<float> values(10000, 1.0f);
    values[7777] = std::nanf("");
    EXPECT_TRUE(std::isnan(norm(*ctx, values)));
    values[7777] = INFINITY;
    EXPECT_TRUE(std::isinf(norm(*ctx, values)));
  }
}

}  // namespace
}  // namespace fathom
