#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace fathom {
namespace {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

// The known answers that Random123 publishes for philox4x32 with ten rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, StreamsAreTheirOwn) {
  Rng a(5, {1, 2, 3}), again(5, {1, 2, 3}), other(5, {1, 2, 4}), seed(5 + (uint64_t{1} << 40), {1, 2, 3});
  int same_other = 0, same_seed = 0;
  for (int i = 0; i < 100; ++i) {
    const uint32_t x = a.next_u32();
    EXPECT_EQ(x, again.next_u32());
    same_other += x == other.next_u32();
    same_seed += x == seed.next_u32();
  }
  EXPECT_EQ(same_other + same_seed, 0);
}

// Which number comes at which place is part of the file formats' and goldens' contract.
TEST(Rng, TheFirstNumbersAreTheFirstBlock) {
  Rng rng(0);
  EXPECT_EQ(rng.next_u32(), 0x6627e8d5u);
  EXPECT_EQ(rng.next_u32(), 0xe169c58du);
}

TEST(Rng, Uniform) {
  Rng rng(1);
  double sum = 0, squares = 0, least = 1, most = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = i % 2 ? double{rng.uniform()} : rng.uniform_double();
    sum += x;
    squares += x * x;
    least = std::min(least, x);
    most = std::max(most, x);
  }
  EXPECT_GE(least, 0);
  EXPECT_LT(most, 1);
  EXPECT_LT(least, 0.001);
  EXPECT_GT(most, 0.999);
  EXPECT_NEAR(sum / n, 0.5, 0.005);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.005);
}

TEST(Rng, Normal) {
  Rng rng(2);
  const int n = 100000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.015);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourth / n, 3, 0.15);
}

TEST(Rng, BelowIsEven) {
  Rng rng(3);
  std::vector<int> seen(7);
  for (int i = 0; i < 70000; ++i) ++seen.at(rng.below(7));
  for (const int count : seen) EXPECT_NEAR(count, 10000, 500);
  // Four numbers for three values: without rejection every third value would come twice as often.
  int thirds = 0;
  for (int i = 0; i < 30000; ++i) thirds += rng.below(3u << 30) % 3 == 0;
  EXPECT_NEAR(thirds, 10000, 400);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(rng.below(1), 0u);
  for (int i = 0; i < 100; ++i) EXPECT_LT(rng.below(0x80000001u), 0x80000001u);
}

}  // namespace
}  // namespace fathom
