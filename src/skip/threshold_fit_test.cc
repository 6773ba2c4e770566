#include "skip/threshold_fit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fathom {
namespace {

// Rows that score 0, 1, …, 99 in some order; one that has no number, and one that runs in any case.
std::vector<float> hundred_and_two() {
  std::vector<float> scores{NAN, INFINITY};
  for (int i = 0; i < 100; ++i) scores.push_back(static_cast<float>(37 * i % 100));
  return scores;
}

TEST(ThresholdFit, AShareOfTheRowsSkips) {
  ThresholdFit fit{.share = 0.3f};
  fit.begin(2);
  fit.find(1, hundred_and_two());
  EXPECT_EQ(fit.thresholds, (std::vector<float>{-INFINITY, 29}));
  EXPECT_EQ(fit.settings(), fit.thresholds) << "they stay";
  fit.shares = {0.1f, 0.5f};
  fit.find(0, hundred_and_two());
  EXPECT_EQ(fit.thresholds, (std::vector<float>{9, 29}));
}

// Half of the slope over a fifth of the rows on either side.
TEST(ThresholdFit, SteeringIsFoundOnTheSameScores) {
  for (const bool given : {false, true}) {
    ThresholdFit fit{.share = 0.3f, .steers = true};
    if (given) fit = {.given = {5, 29}, .steers = true};
    fit.begin(2);
    EXPECT_EQ(fit.settings(), (std::vector<float>{-INFINITY, -INFINITY, -1, -1, 0, 0, 0, 0}));
    std::vector<float> scores = hundred_and_two();
    for (float& score : scores) {
      if (score > 29) score = 29 + 2 * (score - 29);
    }
    fit.find(1, scores);
    const float rows = 102, step = 20;
    ASSERT_EQ(fit.steering.size(), 6u);
    EXPECT_FLOAT_EQ(fit.steering[1], 72 / rows);
    EXPECT_FLOAT_EQ(fit.steering[3], 0.5f * (29 + 2 * 21 - 29) / (step / rows));
    EXPECT_FLOAT_EQ(fit.steering[5], 0.5f * (29 - 10) / (step / rows));
    EXPECT_EQ(fit.settings()[1], 29);
    EXPECT_EQ(fit.steering[0], -1) << "not asked yet";
    fit.find(0, {NAN, INFINITY});
    EXPECT_EQ(fit.steering[0], -1) << "nothing that a threshold could stand against";
  }
}

}  // namespace
}  // namespace fathom
