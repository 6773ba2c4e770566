#include "load/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

constexpr double kRate = 50, kSeconds = 200;

TEST(PoissonArrivals, AscendWithinTheTime) {
  const std::vector<double> times = poisson_arrivals(kRate, kSeconds, 1);
  ASSERT_FALSE(times.empty());
  EXPECT_GT(times.front(), 0);
  EXPECT_LT(times.back(), kSeconds);
  EXPECT_GT(times.back(), kSeconds - 1);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_EQ(std::adjacent_find(times.begin(), times.end()), times.end());
}

// Six standard deviations are 600 arrivals of 10,000.
TEST(PoissonArrivals, ComeAtTheirRate) {
  for (const uint64_t seed : {1, 2, 3})
    EXPECT_NEAR(static_cast<double>(poisson_arrivals(kRate, kSeconds, seed).size()), kRate * kSeconds, 600);
  EXPECT_TRUE(poisson_arrivals(1e-9, kSeconds, 1).empty());
}

// Times between arrivals are exponential: exp(-1) of them are longer than their mean, exp(-2) than twice it.
TEST(PoissonArrivals, GapsAreExponential) {
  const std::vector<double> times = poisson_arrivals(kRate, kSeconds, 1);
  double last = 0, long_ones = 0, longer_ones = 0;
  for (const double at : times) {
    long_ones += (at - last) * kRate > 1;
    longer_ones += (at - last) * kRate > 2;
    last = at;
  }
  const auto count = static_cast<double>(times.size());
  EXPECT_NEAR(long_ones / count, std::exp(-1), 0.025);
  EXPECT_NEAR(longer_ones / count, std::exp(-2), 0.02);
}

// In a Poisson process the counts of equal spans vary as much as their mean is large.
TEST(PoissonArrivals, CountsOfSecondsVaryAsTheirMean) {
  std::vector<double> counts(static_cast<size_t>(kSeconds));
  for (const double at : poisson_arrivals(kRate, kSeconds, 1)) ++counts[static_cast<size_t>(at)];
  double sum = 0, squares = 0;
  for (const double count : counts) {
    sum += count;
    squares += count * count;
  }
  const double mean = sum / kSeconds, variance = squares / kSeconds - mean * mean;
  EXPECT_NEAR(variance / mean, 1, 0.5);
}

TEST(PoissonArrivals, FollowTheirSeed) {
  const std::vector<double> times = poisson_arrivals(kRate, 10, 1);
  EXPECT_EQ(poisson_arrivals(kRate, 10, 1), times);
  EXPECT_NE(poisson_arrivals(kRate, 10, 2), times);
  const std::vector<double> longer = poisson_arrivals(kRate, 20, 1);
  ASSERT_GT(longer.size(), times.size());
  EXPECT_TRUE(std::equal(times.begin(), times.end(), longer.begin()));
}

}  // namespace
}  // namespace fathom
