// Thresholds that meet budgets, on the text they are found on and on other text.
#include "infer/calibrate.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "infer/calibrate_rig_test.h"

namespace fathom {
namespace {

struct CalibratedCase {
  const char* json;
  std::vector<float> budgets{0.9f, 0.8f, 0.7f};
  int sequences = 40, length = 60;
};
void PrintTo(const CalibratedCase& c, std::ostream* os) {
  *os << c.json;
}

class Calibrated : public testing::TestWithParam<CalibratedCase> {
 protected:
  Calibrated() : routed_(GetParam().json) {}
  Rows text(uint64_t seed) const { return quiet_rows(GetParam().sequences, seed, GetParam().length); }
  // Cached as achieved() has it.
  Calibration table(const Rows& rows, const CalibrationText& check = {}) {
    CalibrateOptions options;
    options.budgets = GetParam().budgets;
    options.k_type = options.v_type = DType::kF32;
    if (!check.empty()) options.check = {{"other", check}};
    return calibrate(routed_.ctx, routed_.model, *routed_.policy, {rows}, options);
  }
  Routed routed_;
};

TEST_P(Calibrated, MeetsItsBudgetsOnOtherText) {
  const Rows rows = text(1), other = text(2);
  const Calibration table = this->table(rows, {text(3)});
  EXPECT_EQ(table.weight_type, "f32");
  const std::vector<CalibrationPoint> asked = table.asked();
  ASSERT_EQ(asked.size(), GetParam().budgets.size());
  float before = table.points[0].budget;
  bool differs = false;  // other text was run
  for (const CalibrationPoint& point : asked) {
    EXPECT_NEAR(point.achieved, point.budget, 0.005) << point.budget;
    EXPECT_NEAR(routed_.achieved(rows, point.settings()), point.achieved, 1e-3) << point.budget;
    EXPECT_NEAR(routed_.achieved(other, point.settings()), point.budget, 0.02) << point.budget;
    EXPECT_NEAR(point.checked, point.budget, 0.02) << point.budget;
    differs = differs || point.checked != point.achieved;
    // Between two of them, and between the first and what runs at most.
    for (const float place : {0.3f, 0.6f}) {
      const float between = before + place * (point.budget - before);
      EXPECT_NEAR(routed_.achieved(other, table.thresholds(between)), between, 0.02) << between;
    }
    before = point.budget;
  }
  EXPECT_TRUE(differs);
  for (size_t i = 1; i < table.points.size(); ++i)
    EXPECT_LT(table.points[i].budget, table.points[i - 1].budget);
  // What is measured falls with the budget, also between those that were asked for.
  float last = 2;
  for (float budget = table.points[0].budget; budget >= asked.back().budget; budget -= 0.025f) {
    const float beta = routed_.achieved(rows, table.thresholds(budget));
    EXPECT_NEAR(beta, budget, 0.015) << budget;
    EXPECT_LT(beta, last + 1e-3f) << budget;
    last = beta;
  }
  EXPECT_THROW(table.thresholds(0.3f), UserError);
}

TEST_P(Calibrated, AtMostRunsWhatItsOwnRuleAllows) {
  const Calibration table = this->table(text(1));
  const float most = table.points[0].budget;
  if (routed_.policy->opens_fully()) {
    EXPECT_EQ(most, 1);
    EXPECT_FLOAT_EQ(routed_.achieved(text(2), table.thresholds(1.0f)), 1.0f);
  } else {
    EXPECT_LT(most, 0.99f);
    EXPECT_NEAR(routed_.achieved(text(2), table.thresholds(most)), most, 0.02);
    EXPECT_THROW(table.thresholds(most + 0.01f), UserError);
    EXPECT_THROW(table.thresholds(1.0f), UserError);
  }
}

constexpr const char* kMindPrompt =
    R"({"name": "mind_skip", "pool": "prompt", "layers": [0, 1, 2, 3], "units": "block"})";

INSTANTIATE_TEST_SUITE_P(
    Methods, Calibrated,
    testing::Values(
        CalibratedCase{R"({"name": "nested", "band": 0, "order": [5, 2, 6, 3, 4, 7]})"},
        CalibratedCase{R"({"name": "priced"})"}, CalibratedCase{R"({"name": "gate_skip"})"},
        CalibratedCase{R"({"name": "gate_skip", "gate": "scalar", "protect": [0, 3]})"},
        CalibratedCase{R"({"name": "gate_skip", "two_stage": true})"},
        CalibratedCase{R"({"name": "skip_layer"})"}, CalibratedCase{R"({"name": "mixture_of_depths"})"},
        CalibratedCase{
            R"({"name": "mind_skip", "level": "token", "layers": [0, 1, 2, 3], "units": "block"})"},
        // In expectation over sequences: many of them, the more so as each decides for all its rows.
        CalibratedCase{kMindSequence, {0.9f, 0.8f, 0.7f}, 1000, 6},
        CalibratedCase{kMindPrompt, {0.9f, 0.8f, 0.7f}, 1000, 6}, CalibratedCase{R"({"name": "calm"})"},
        CalibratedCase{R"({"name": "calm", "confidence": "similarity"})"},
        CalibratedCase{R"({"name": "free"})", {0.9f, 0.8f, 0.7f}, 120},
        CalibratedCase{R"({"name": "free", "confidence": "similarity"})"},
        CalibratedCase{R"({"name": "skip_middle"})", {0.55f, 0.5f, 0.45f}}));

// MindSkip's first rows run at any threshold: what they take is the least that can be asked for, and no score
// of theirs is turned past.
TEST(Calibration, RowsThatMustRunAreNoScores) {
  Routed routed(kMindSequence);  // of six rows, two must run
  const CalibrationText text{quiet_rows(200, 1, 6)};
  CalibrateOptions options;
  options.k_type = options.v_type = DType::kF32;
  options.budgets = {0.02f};
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, text, options), UserError);
  options.budgets = {0.5f};
  const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, text, options);
  for (const CalibrationPoint& point : table.points) {
    for (const float threshold : point.thresholds) EXPECT_LT(threshold, 1.0f) << point.budget;
  }
  // Sequences that end in the prefix have nothing to decide.
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(200, 1, 2)}, options),
               UserError);
}

// What it cannot do is left out of a grid that nobody asked for, and refused of one that somebody did.
TEST(Calibration, BudgetsOutOfReach) {
  Routed routed(R"({"name": "mind_skip", "level": "token", "units": "attention"})");
  const CalibrationText text{quiet_rows(12, 1)};
  CalibrateOptions options;
  options.budgets = {0.9f, 0.4f};
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, text, options), UserError);
  options.all_budgets = false;
  const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, text, options);
  ASSERT_EQ(table.asked().size(), 1u);
  EXPECT_EQ(table.asked()[0].budget, 0.9f);
  options.budgets = {0.4f};
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, text, options), UserError);
}

TEST(Calibration, ABudgetThatSkipMiddleWasNotTrainedToIsRefused) {
  Routed routed(R"({"name": "skip_middle"})");
  CalibrateOptions options;
  options.budgets = {0.5f};
  const CalibrationText text{quiet_rows(12, 1)};
  const float most = calibrate(routed.ctx, routed.model, *routed.policy, text, options).points[0].budget;
  for (const float budget : {0.99f, most + 0.01f}) {  // however near
    options.budgets = {budget};
    EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, text, options), UserError) << budget;
  }
}

// Rows that may not go far from the mean row's list meet budgets between the lists, too.
TEST(Calibration, NestedListsInABandMeetTheirBudgets) {
  Routed routed(R"({"name": "nested", "band": 1, "order": [5, 2, 6, 3, 4, 7]})");
  std::vector<Tensor*> tensors;
  for (const MethodParameter& parameter : routed.policy->parameters(routed.model.config))
    tensors.push_back(parameter.tensor);
  const std::vector<float> mean{0.1f, 0.3f, 0.6f, 1.2f};
  std::copy(mean.begin(), mean.end(), tensors[2]->data<float>());
  for (int64_t i = 0; i < tensors[0]->numel(); ++i) tensors[0]->data<float>()[i] *= 0.1f;
  CalibrateOptions options;
  options.budgets = {0.93f, 0.9f, 0.84f, 0.8f, 0.75f, 0.7f};
  options.k_type = options.v_type = DType::kF32;
  const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(40, 1)}, options);
  for (const CalibrationPoint& point : table.asked())
    EXPECT_NEAR(point.achieved, point.budget, 0.01) << point.budget;
}

// As many units go as come nearest to the budget on this text, whatever its lengths.
TEST(Calibration, AnOrderOfUnitsComesAsNearAsItCan) {
  Routed routed(R"({"name": "harm_order", "order": [5, 2, 6, 3, 4, 7, 1, 0]})");
  const UnitList list = routed.policy->list(routed.model.config);
  CalibrateOptions options;
  options.k_type = options.v_type = DType::kF32;
  std::vector<float> ran;
  for (const int length : {4, 60}) {
    const Rows rows = quiet_rows(8, 1, length);
    options.budgets.clear();
    for (const size_t dropped : {1, 3, 4, 6})
      options.budgets.push_back(routed.achieved(rows, list.without(dropped, 8)) + 0.013f);
    const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options);
    const std::vector<CalibrationPoint> asked = table.asked();
    ASSERT_EQ(asked.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(asked[i].thresholds, list.without(std::array{1, 3, 4, 6}[i], 8)) << length;
      EXPECT_NEAR(asked[i].budget - asked[i].achieved, 0.013f, 1e-3) << length;
      EXPECT_EQ(table.thresholds(asked[i].budget), asked[i].thresholds);
    }
    EXPECT_EQ(table.thresholds(1), list.without(0, 8));
    ran.push_back(asked[0].achieved);
  }
  EXPECT_GT(std::abs(ran[0] - ran[1]), 0.005);  // the same units are another share of short texts
}

// Every point says what its list is of this text's work.
TEST(Calibration, PointsOfAnOrderAreCounted) {
  Routed routed(R"({"name": "harm_order", "order": [5, 2, 6, 3, 4, 7, 1, 0]})");
  CalibrateOptions options;
  options.k_type = options.v_type = DType::kF32;
  options.budgets = {0.4f};
  const Rows rows = quiet_rows(8, 1, 60);
  const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options);
  ASSERT_GE(table.points.size(), 4u);
  for (size_t i = 1; i + 1 < table.points.size(); ++i)
    EXPECT_NEAR(routed.achieved(rows, table.points[i].thresholds), table.points[i].budget, 1e-4) << i;
}

TEST(Calibration, AFixedListHasNothingToTurn) {
  for (const char* json :
       {R"({"name": "harm_order", "drop": [3]})", R"({"name": "layer_skip", "exit_layer": 2})"}) {
    Routed routed(json);
    EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(2, 1)}, {}), UserError);
    EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, {}, {}), UserError);
  }
}

// Gates whose scores move far when what is below them skips: each unit has its share all the same, for its
// threshold is found on the scores that are left by then.
TEST(Calibration, ThresholdsAreFoundOnWhatIsLeftBySkipping) {
  Routed routed(R"({"name": "gate_skip", "gate": "scalar", "gate_input": "residual"})");
  const Rows rows = quiet_rows(16, 1);
  CalibrateOptions options;
  options.budgets = {0.7f};
  options.steer = Steer::kOff;
  options.k_type = options.v_type = DType::kF32;
  const CalibrationPoint point =
      calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options).asked().at(0);
  const Seen seen = watched_pass(routed, rows, point.settings());
  std::vector<double> skipped;
  for (const auto& unit : seen.kept)
    skipped.push_back(static_cast<double>(std::count(unit.begin(), unit.end(), 0)) /
                      static_cast<double>(unit.size()));
  for (const double share : skipped) EXPECT_NEAR(share, skipped[0], 2e-3);
  EXPECT_GT(skipped[0], 0.2);
  // Quantiles of the scores of a pass in which nobody skips give other shares.
  const Seen open = watched_pass(routed, rows, std::vector<float>(8, -INFINITY));
  std::vector<float> naive;
  for (std::vector<float> scores : open.scores) {
    std::sort(scores.begin(), scores.end());
    naive.push_back(scores[static_cast<size_t>(skipped[0] * static_cast<double>(scores.size()))]);
  }
  const Seen moved = watched_pass(routed, rows, naive);
  double far = 0;
  for (const auto& unit : moved.kept)
    far = std::max(far, std::abs(static_cast<double>(std::count(unit.begin(), unit.end(), 0)) /
                                     static_cast<double>(unit.size()) -
                                 skipped[0]));
  EXPECT_GT(far, 0.02);
}

// Many rows with one score: the nearer of all of them and none.
TEST(Calibration, EqualScoresGoTogether) {
  Routed routed(R"({"name": "gate_skip", "gate": "scalar"})");
  for (const MethodParameter& parameter : routed.policy->parameters(routed.model.config))
    std::fill_n(parameter.tensor->data<float>(), parameter.tensor->numel(), 0.0f);
  CalibrateOptions options;
  options.budgets = {0.8f};
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(4, 1)}, options), UserError);
}

}  // namespace
}  // namespace fathom
