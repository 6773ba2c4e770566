#include "serve/auto_budget.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

const std::vector<float> kGrid{1.0f, 0.95f, 0.9f, 0.8f, 0.7f, 0.6f};

float chosen(const Load& load, float floor = 0.6f) {
  return auto_budget(kGrid, floor, 0.1, load);
}

TEST(AutoBudget, ASmallLoadRunsEverything) {
  EXPECT_EQ(chosen({}), 1.0f);
  EXPECT_EQ(chosen({.waiting = 0, .token_seconds = 0.1}), 1.0f);
  EXPECT_EQ(chosen({.waiting = 0, .token_seconds = 0.02, .budget = 0.6}), 1.0f);
}

// The share that meets the target, rounded down to the grid.
TEST(AutoBudget, SlowTokensLowerIt) {
  EXPECT_EQ(chosen({.token_seconds = 0.101}), 0.95f);
  EXPECT_EQ(chosen({.token_seconds = 0.125}), 0.8f);
  EXPECT_EQ(chosen({.token_seconds = 0.13}), 0.7f);
  EXPECT_EQ(chosen({.token_seconds = 10}), 0.6f);
  // What ran at 0.8 and was too slow needs less than 0.8.
  EXPECT_EQ(chosen({.token_seconds = 0.11, .budget = 0.8}), 0.7f);
}

// Answers at 0.7 take 0.09 s a token; at full depth they would take 0.129 s, more than the target.
TEST(AutoBudget, TokensThatAreFastBecauseTheySkipKeepTheirBudget) {
  EXPECT_EQ(chosen({.token_seconds = 0.09, .budget = 0.7}), 0.7f);
  EXPECT_EQ(chosen({.token_seconds = 0.075, .budget = 0.7}), 0.9f);
  EXPECT_EQ(chosen({.token_seconds = 0.07, .budget = 0.7}), 1.0f);
}

TEST(AutoBudget, AQueueTakesTheSmallest) {
  EXPECT_EQ(chosen({.waiting = 1}), 0.6f);
  EXPECT_EQ(chosen({.waiting = 1, .token_seconds = 0.01}), 0.6f);
  EXPECT_EQ(chosen({.waiting = 100}, 0.8f), 0.8f);
}

TEST(AutoBudget, AnAnswerThatGetsAPlaceDoesNotWait) {
  EXPECT_EQ(without_place(0, 3, 4), 0);
  EXPECT_EQ(without_place(2, 2, 4), 0);
  EXPECT_EQ(without_place(4, 2, 4), 2);
  EXPECT_EQ(without_place(3, 2, 4), 1);
}

TEST(AutoBudget, NeverBelowTheFloor) {
  const Load heavy{.waiting = 1000, .token_seconds = 5};
  EXPECT_EQ(chosen(heavy, 0.6f), 0.6f);
  EXPECT_EQ(chosen(heavy, 0.85f), 0.9f);  // the smallest of the grid that is not below
  EXPECT_EQ(chosen(heavy, 1.0f), 1.0f);
  EXPECT_EQ(auto_budget({}, 0.5f, 0.1, heavy), 1.0f);
  EXPECT_EQ(auto_budget({0.8f, 0.7f}, 0.5f, 0.1, {}), 0.8f);  // a method that cannot run everything
}

TEST(AutoBudget, TokenTimesFollowAndAreForgotten) {
  TokenTimes times;
  Moment now{};
  EXPECT_EQ(times.recent(now), 0);
  times.add(0.2, 1, now);
  EXPECT_DOUBLE_EQ(times.recent(now), 0.2);
  for (int i = 0; i < 4000; ++i) times.add(0.05, 1, now += std::chrono::milliseconds(1));
  EXPECT_NEAR(times.recent(now), 0.05, 1e-4);
  times.add(1.0, 2, now);  // two tokens of half a second
  EXPECT_GT(times.recent(now), 0.053);
  EXPECT_LT(times.recent(now), 0.06);
  EXPECT_EQ(times.recent(now + std::chrono::seconds(3)), 0);
}

}  // namespace
}  // namespace fathom
