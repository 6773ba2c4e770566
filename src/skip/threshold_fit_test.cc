#include "skip/threshold_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

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
  fit.find(1, hundred_and_two(), {}, -INFINITY);
  EXPECT_EQ(fit.thresholds, (std::vector<float>{-INFINITY, 29}));
  EXPECT_EQ(fit.settings(), fit.thresholds) << "they stay";
  fit.shares = {0.1f, 0.5f};
  fit.find(0, hundred_and_two(), {}, -INFINITY);
  EXPECT_EQ(fit.thresholds, (std::vector<float>{9, 29}));
}

// Half of the slope over a fifth of the rows on either side.
TEST(ThresholdFit, SteeringIsFoundOnTheSameScores) {
  for (const bool given : {false, true}) {
    ThresholdFit fit{.share = 0.3f, .steers = true};
    if (given) fit = {.given = {5, 29}, .steers = true};
    fit.begin(2);
    EXPECT_EQ(fit.settings(), (std::vector<float>{-INFINITY, -INFINITY, -1, -1, 0, 0, 0, 0, 0, 0}));
    std::vector<float> scores = hundred_and_two();
    for (float& score : scores) {
      if (score > 29) score = 29 + 2 * (score - 29);
    }
    fit.find(1, scores, {}, -INFINITY);
    const float rows = 102, step = 20;
    ASSERT_EQ(fit.steering.size(), 8u);
    EXPECT_FLOAT_EQ(fit.steering[1], 72 / rows);
    EXPECT_FLOAT_EQ(fit.steering[3], 0.5f * (29 + 2 * 21 - 29) / (step / rows));
    EXPECT_FLOAT_EQ(fit.steering[5], 0.5f * (29 - 10) / (step / rows));
    EXPECT_EQ(fit.settings()[1], 29);
    EXPECT_EQ(fit.steering[0], -1) << "not asked yet";
    fit.find(0, {NAN, INFINITY}, {}, -INFINITY);
    EXPECT_EQ(fit.steering[0], -1) << "nothing that a threshold could stand against";
  }
}

// Sequences whose first rows score higher than the rest: a start brings the share of these to what is wanted,
// by the definition of steering.
TEST(ThresholdFit, TheFirstRowsRunTheirShare) {
  std::vector<float> scores;
  std::vector<BatchRow> rows;
  Rng rng(5);
  for (int32_t s = 0; s < 40; ++s) {
    for (int32_t p = 0; p < 200; ++p) {
      BatchRow row;
      row.sequence = s, row.position = p;
      rows.push_back(row);
      scores.push_back(rng.uniform() + (p < kFirstRows ? 0.15f : 0.0f));
    }
  }
  for (const float first : {0.0f, -0.1f, 0.05f}) {
    ThresholdFit fit{.share = 0.4f, .steers = true, .first = first};
    fit.begin(1);
    fit.find(0, scores, rows, -INFINITY);
    const float threshold = fit.thresholds[0], share = fit.steering[0], up = fit.steering[1],
                down = fit.steering[2], start = fit.steering[3];
    const auto shares = [&](float excess_at_first) {
      float ran = 0, all = 0;
      for (size_t begin = 0; begin < rows.size(); begin += 200) {
        float excess = excess_at_first;
        for (size_t block = begin; block < begin + 64; block += 32) {
          const float at = threshold + (excess > 0 ? up : down) * excess / 32;
          for (size_t r = block; r < block + 32; ++r, ++all) {
            ran += scores[r] > at;
            excess += (scores[r] > at ? 1.0f : 0.0f) - share;
          }
        }
      }
      return ran / all;
    };
    EXPECT_GT(shares(0), share + 0.05f);
    EXPECT_NEAR(shares(start), share + first, 0.004f);
    if (first <= 0) {
      EXPECT_GT(start, 1);
    }
  }
}

}  // namespace
}  // namespace fathom
