// The passes of a calibration: over text in several batches and of several kinds, with a cache, and
// cancelled.
#include "infer/calibration_run.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "infer/calibrate.h"
#include "infer/calibrate_rig_test.h"
#include "infer/stoppable_policy.h"

namespace fathom {
namespace {

void expect_same(const Calibration& a, const Calibration& b) {
  EXPECT_EQ(a.kinds, b.kinds);
  ASSERT_EQ(a.points.size(), b.points.size());
  const auto same = [](float one, float other) {
    return one == other || (std::isnan(one) && std::isnan(other));
  };
  for (size_t i = 0; i < a.points.size(); ++i) {
    const CalibrationPoint &one = a.points[i], &other = b.points[i];
    EXPECT_EQ(one.budget, other.budget) << i;
    EXPECT_EQ(one.thresholds, other.thresholds) << i;
    EXPECT_EQ(one.steering, other.steering) << i;
    EXPECT_TRUE(same(one.achieved, other.achieved)) << i << ": " << one.achieved << " " << other.achieved;
    EXPECT_TRUE(same(one.held, other.held)) << i << ": " << one.held << " " << other.held;
    EXPECT_TRUE(same(one.checked, other.checked)) << i << ": " << one.checked << " " << other.checked;
    EXPECT_EQ(one.of_kinds, other.of_kinds) << i;
    EXPECT_EQ(one.errors_of_kinds, other.errors_of_kinds) << i;
  }
}

// Text of several passes is one text: whole tables are the same, whatever way their thresholds are found.
TEST(Calibration, SeveralBatchesCountTogether) {
  const Rows rows = quiet_rows(6, 1), other = quiet_rows(4, 2);
  const auto part = [](const Rows& all, int32_t begin, int32_t end) {
    Rows some;
    for (BatchRow row : all) {
      if (row.sequence < begin || row.sequence >= end) continue;
      row.sequence -= begin;
      some.push_back(row);
    }
    return some;
  };
  for (const char* json :
       {R"({"name": "gate_skip"})", R"({"name": "mixture_of_depths"})", R"({"name": "free"})",
        R"({"name": "priced"})", R"({"name": "calm"})", R"({"name": "skip_middle"})",
        R"({"name": "skip_layer"})", R"({"name": "mind_skip", "pool": "prefix:4"})"}) {
    SCOPED_TRACE(json);
    Routed routed(json);
    CalibrateOptions options;
    options.budgets = {0.8f, 0.7f};
    if (!routed.policy->opens_fully()) options.budgets = {0.55f, 0.45f};
    const auto table = [&](const CalibrationText& text, const CalibrationText& check) {
      options.check = {{"other", check}};
      return calibrate(routed.ctx, routed.model, *routed.policy, text, options);
    };
    const Calibration whole = table({rows}, {other});
    EXPECT_EQ(whole.asked().size(), 2u);
    EXPECT_EQ(whole.asked()[0].steering.empty(), !routed.policy->steers());
    EXPECT_GT(whole.points.size(), 4u);  // those between are compared, too
    expect_same(table({part(rows, 0, 2), part(rows, 2, 6)}, {part(other, 0, 1), part(other, 1, 4)}), whole);
    CalibrationText alone;
    for (int32_t s = 0; s < 6; ++s) alone.push_back(part(rows, s, s + 1));
    expect_same(table(alone, {other}), whole);
    expect_same(table({part(rows, 3, 6), part(rows, 0, 3)}, {other}), whole);
  }
}

// Other text is reported for each of its kinds, and for all by their tokens.
TEST(Calibration, EveryKindIsChecked) {
  Routed routed(R"({"name": "gate_skip"})");
  CalibrateOptions options;
  options.budgets = {0.8f};
  options.steer = Steer::kOff;
  Rows few = quiet_rows(1, 9);
  for (BatchRow& row : few) row.token = 3 + row.position % 2;
  options.check = {{"usual", {quiet_rows(8, 2)}}, {"odd", {few}}};
  const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(8, 1)}, options);
  const CalibrationPoint point = table.asked().at(0);
  EXPECT_EQ(table.kinds, (std::vector<std::string>{"usual", "odd"}));
  ASSERT_EQ(point.of_kinds.size(), 2u);
  EXPECT_NEAR(point.of_kinds[0], 0.8, 0.03);
  EXPECT_GT(std::abs(point.of_kinds[1] - 0.8f), 0.03f);
  EXPECT_NEAR(point.checked, (8 * point.of_kinds[0] + point.of_kinds[1]) / 9, 1e-5);
  // The error of a kind is that of its sequences, which are of one length here; one alone has none.
  ASSERT_EQ(point.errors_of_kinds.size(), 2u);
  EXPECT_TRUE(std::isnan(point.errors_of_kinds[1]));
  const Rows usual = quiet_rows(8, 2);
  options.check.clear();
  for (int32_t s = 0; s < 8; ++s) {
    Rows alone(usual.begin() + 60 * s, usual.begin() + 60 * (s + 1));
    for (BatchRow& row : alone) row.sequence = 0;
    options.check.push_back({"one", {alone}});
  }
  const Calibration again = calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(8, 1)}, options);
  double mean = 0, squares = 0;
  const std::vector<float> betas = again.asked().at(0).of_kinds;
  for (const float beta : betas) mean += double{beta} / 8;
  for (const float beta : betas) squares += std::pow(double{beta} - mean, 2);
  EXPECT_NEAR(point.of_kinds[0], mean, 1e-5);
  EXPECT_NEAR(point.errors_of_kinds[0], std::sqrt(squares / 7 / 8), 1e-6);
  EXPECT_GT(point.errors_of_kinds[0], 1e-3);
}

// Of a dense cache's entries, those that the text really took: none for hidden rows, all where every row
// leaves its own.
TEST(Calibration, SaysWhatTheCacheHolds) {
  CalibrateOptions options;
  options.budgets = {0.8f};
  options.k_type = options.v_type = DType::kF32;
  const Rows rows = quiet_rows(2, 1, 384);
  for (const char* rule : {"hide", "project", "copy"}) {
    Routed routed(fmt::format(R"({{"name": "gate_skip", "skipped_kv": "{}"}})", rule));
    const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options);
    EXPECT_EQ(table.points[0].held, 1) << rule;
    for (const CalibrationPoint& point : table.asked()) {
      if (rule == std::string("project")) {
        EXPECT_EQ(point.held, 1);
        continue;
      }
      const Seen seen = watched_pass(routed, rows, point.settings());
      double ran = 0;
      for (size_t unit = 0; unit < 8; unit += 2)
        ran += static_cast<double>(std::count(seen.kept[unit].begin(), seen.kept[unit].end(), 1)) /
               (4 * static_cast<double>(rows.size()));
      EXPECT_LT(ran, 0.97) << rule;
      if (rule == std::string("hide")) {
        EXPECT_NEAR(point.held, ran, 1e-6);
      } else {  // layer 0 has nothing below it to copy
        EXPECT_GE(point.held, ran);
        EXPECT_LE(point.held, ran + 0.25 * (1 - ran) + 0.05);
      }
    }
    EXPECT_TRUE(std::isnan(table.points[1].held)) << "between two that were measured";
  }
}

TEST(Calibration, ASequenceThatSkipsALayerHoldsNothingThere) {
  Routed routed(kMindSequence);
  CalibrateOptions options;
  options.budgets = {0.8f};
  options.k_type = options.v_type = DType::kF32;
  const Rows rows = quiet_rows(300, 1, 6);
  const CalibrationPoint point =
      calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options).asked().at(0);
  const Seen seen = watched_pass(routed, rows, point.settings());
  double runs = 0;  // of a sequence, its last row decides as all that came after its pool
  for (size_t layer = 0; layer < 4; ++layer) {
    for (size_t s = 0; s < 300; ++s) runs += seen.kept[2 * layer][6 * s + 5];
  }
  EXPECT_NEAR(point.held, runs / (4 * 300), 1e-6);
  EXPECT_LT(point.held, 0.95);
}

// Scores are those that a cache of these types gives.
TEST(Calibration, TheCachesTypeCounts) {
  Routed routed(R"({"name": "gate_skip"})");
  CalibrateOptions options;
  options.budgets = {0.8f};
  const auto thresholds = [&](DType k, DType v) {
    options.k_type = k;
    options.v_type = v;
    return calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(4, 1)}, options)
        .asked()[0]
        .thresholds;
  };
  const std::vector<float> exact = thresholds(DType::kF32, DType::kF32);
  EXPECT_NE(thresholds(DType::kBF16, DType::kF32), exact);
  EXPECT_NE(thresholds(DType::kF32, DType::kBF16), exact);
}

TEST(Calibration, CanBeCancelled) {
  Routed routed(R"({"name": "gate_skip"})");
  std::atomic<bool> stop = false;
  int passes = 0;
  CalibrateOptions options;
  options.cancel = &stop;
  options.on_progress = [&](int64_t) { stop = ++passes == 3; };
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, {quiet_rows(4, 1)}, options),
               CalibrationCancelled);
  EXPECT_EQ(passes, 3);
}

// What comes in the last pass is heard, too: nobody wants the table.
TEST(Calibration, CanBeCancelledInTheLastPass) {
  Routed routed(R"({"name": "gate_skip"})");
  std::atomic<bool> stop = false;
  int passes = 0, all = 0;
  CalibrateOptions options;
  options.budgets = {0.8f};
  options.cancel = &stop;
  options.on_progress = [&](int64_t) { stop = ++passes == all; };
  const CalibrationText text{quiet_rows(4, 1)};
  calibrate(routed.ctx, routed.model, *routed.policy, text, options);
  all = std::exchange(passes, 0);
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, text, options), CalibrationCancelled);
  EXPECT_EQ(passes, all);
}

// A pass over many rows does not run to its end.
TEST(Calibration, APassStopsAtTheNextUnit) {
  Routed routed(R"({"name": "gate_skip"})");
  std::atomic<bool> stop = false;
  struct Stopping : ForwardingPolicy {  // in the third unit
    Stopping(const SkipPolicy& inner, std::atomic<bool>& flag) : ForwardingPolicy(inner), flag_(flag) {}
    Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
      flag_ = ++asked == 3;
      return ForwardingPolicy::decide(ctx, input, state);
    }
    mutable int asked = 0;

   private:
    std::atomic<bool>& flag_;
  };
  const Stopping stopping(*routed.policy, stop);
  const Batch batch = make_batch(routed.ctx, quiet_rows(4, 1));
  const auto state = routed.policy->make_state(routed.ctx, routed.model.config, batch.sequences);
  const ArenaScope scope(routed.ctx);
  EXPECT_THROW(
      forward(routed.ctx, routed.model, batch, FreshPass{}, StoppablePolicy(stopping, &stop), *state),
      CalibrationCancelled);
  EXPECT_EQ(stopping.asked, 3);
}

}  // namespace
}  // namespace fathom
