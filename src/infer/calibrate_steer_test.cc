// Thresholds that are steered by what has run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "infer/calibrate.h"
#include "infer/calibrate_rig_test.h"

namespace fathom {
namespace {

constexpr const char* kSteered[] = {R"({"name": "gate_skip"})", R"({"name": "mixture_of_depths"})",
                                    R"({"name": "calm", "confidence": "similarity"})"};

CalibrationPoint at_four_fifths(Routed& routed, const Rows& rows) {
  CalibrateOptions options;
  options.budgets = {0.8f};
  options.k_type = options.v_type = DType::kF32;
  return calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options).asked().at(0);
}

// Text whose scores lie elsewhere: the same text, with thresholds that are moved by what 15 % of the rows
// are.
TEST(Calibration, SteeringMeetsABudgetThatThresholdsMiss) {
  for (const char* json : kSteered) {
    Routed routed(json);
    const Rows rows = quiet_rows(20, 1, 110);
    const CalibrationPoint point = at_four_fifths(routed, rows);
    ASSERT_EQ(point.steering.size(), 4 * point.thresholds.size());
    CalibrationPoint moved = point;
    for (size_t unit = 0; unit < point.thresholds.size(); ++unit)
      moved.thresholds[unit] += 0.3f * point.steering[point.thresholds.size() + unit];
    const float alone = std::abs(routed.achieved(rows, moved.thresholds) - 0.8f);
    EXPECT_GT(alone, 0.05f) << json;
    EXPECT_LT(std::abs(routed.achieved(rows, moved.settings()) - 0.8f), 0.6f * alone) << json;
  }
}

// A text of 64 tokens is as near to its budget as a long one, though there is little to steer by, and words
// at the beginning are others than later.
TEST(Calibration, SteeringMeetsABudgetOnShortText) {
  for (const char* json : kSteered) {
    Routed routed(json);
    Rows rows = quiet_rows(20, 1, 110), beginnings;
    for (BatchRow& row : rows) {
      if (row.position >= kFirstRows) continue;
      row.token /= 3;
      beginnings.push_back(row);
    }
    CalibrationPoint point = at_four_fifths(routed, rows);
    EXPECT_NEAR(routed.achieved(rows, point.settings()), 0.8f, 0.004f) << json;
    EXPECT_NEAR(routed.achieved(beginnings, point.settings()), 0.8f, 0.007f) << json;
    if (routed.policy->name() == "mixture_of_depths") continue;           // near in any case
    std::fill_n(point.steering.rbegin(), point.thresholds.size(), 0.0f);  // without the starts
    EXPECT_GT(std::abs(routed.achieved(beginnings, point.settings()) - 0.8f), 0.015f) << json;
  }
}

// What steers thresholds is found in the pass that finds these: of nothing skipped, the first point, the last
// one, and a try.
TEST(Calibration, SteeringTakesNoPassesMore) {
  for (const char* json : {R"({"name": "gate_skip"})", R"({"name": "calm", "confidence": "similarity"})"}) {
    for (const Steer steer : {Steer::kOff, Steer::kOn}) {
      Routed routed(json);
      CalibrateOptions options;
      options.budgets = {0.98f};
      options.steer = steer;
      options.most_passes = 1;
      int64_t passes = 0;
      options.on_progress = [&](int64_t more) { passes += more; };
      const Calibration table =
          calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(20, 1)}, options);
      EXPECT_EQ(passes, 4) << json;
      EXPECT_EQ(table.asked().at(0).steering.empty(), steer == Steer::kOff) << json;
    }
  }
}

// Where a sequence decides once, or one price decides for the network, there is nothing to steer.
TEST(Calibration, WhatCannotBeSteeredIsRefused) {
  Routed routed(R"({"name": "priced"})");
  CalibrateOptions options;
  options.budgets = {0.8f};
  const CalibrationText text{quiet_rows(8, 1)};
  EXPECT_TRUE(
      calibrate(routed.ctx, routed.model, *routed.policy, text, options).asked().at(0).steering.empty());
  options.steer = Steer::kOn;
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, text, options), UserError);
}

}  // namespace
}  // namespace fathom
