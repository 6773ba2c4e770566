#include "infer/calibrate.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "infer/stoppable_policy.h"
#include "infer/trained_rule.h"
#include "model/flops.h"
#include "skip/tiny_model_test.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int64_t kVocab = 480;

// A first block knows no more of a row than its token: with few of them scores would be few, too.
ModelConfig many_tokens() {
  ModelConfig config = tiny_config();
  config.vocab = kVocab;
  return config;
}

// A method whose routers differ between rows, on a small random model.
struct Routed {
  Context ctx{{.threads = 2}};
  Model model = tiny_model(many_tokens());
  std::unique_ptr<MethodPolicy> policy;

  explicit Routed(const std::string& json) : policy(MethodPolicy::from_json(json, "test")) {
    uint32_t stream = 900;
    for (const MethodParameter& parameter : policy->parameters(model.config))
      add_noise(*parameter.tensor, 0.2f, 3, stream++);
  }

  // β over these rows at these thresholds.
  float achieved(const Rows& rows, const std::vector<float>& thresholds) {
    const ArenaScope scope(ctx);
    const Batch batch = make_batch(ctx, rows);
    const auto base = policy->make_state(ctx, model.config, batch.sequences);
    auto& state = static_cast<SkipState&>(*base);
    for (int32_t s = 0; s < batch.sequences; ++s) state.set_thresholds(ctx, s, thresholds);
    const Work before = ctx.counters().total();
    forward(ctx, model, batch, FreshPass{}, *policy, state);
    const Work work = ctx.counters().total() - before;
    return static_cast<float>(work.madds - work.policy_madds) /
           static_cast<float>(dense_work(model.config, rows).block_madds);
  }
};

// Every token about as often as any other, in any order: what chance adds to a text of this length is not
// what is measured here.
Rows quiet_rows(int sequences, uint64_t seed, int length = 60) {
  Rows rows = random_rows(std::vector<int>(static_cast<size_t>(sequences), length), seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < rows.size(); ++i) tokens.push_back(static_cast<int32_t>(i % kVocab));
  Rng rng(seed);
  for (size_t i = rows.size(); i > 1; --i)
    std::swap(tokens[i - 1], tokens[rng.below(static_cast<uint32_t>(i))]);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].token = tokens[i];
    rows[i].wants_logits = false;
  }
  return rows;
}

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

constexpr const char* kMindSequence =
    R"({"name": "mind_skip", "pool": "prefix:2", "layers": [0, 1, 2, 3], "units": "block"})";
constexpr const char* kMindPrompt =
    R"({"name": "mind_skip", "pool": "prompt", "layers": [0, 1, 2, 3], "units": "block"})";

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

// Also where a unit that goes at a point goes at none above it: nothing lies between "never" and "always".
TEST(Calibration, ABudgetOfTheTableHasItsPointsThresholds) {
  constexpr float kAlways = std::numeric_limits<float>::max(), kNever = -INFINITY;
  Calibration table;
  table.points = {{1, 1, NAN, {kNever, kNever, kNever}, 1},
                  {0.95f, 0.94f, NAN, {kAlways, kNever, kNever}, 1},
                  {0.9f, 0.91f, NAN, {kAlways, kNever, 0.5f}, 1}};
  for (const CalibrationPoint& point : table.points)
    EXPECT_EQ(table.thresholds(point.budget), point.thresholds) << point.budget;
  EXPECT_EQ(table.thresholds(0.92f), table.points[1].thresholds);
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
        R"({"name": "priced"})", R"({"name": "calm"})", R"({"name": "skip_middle"})"}) {
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

// Who ran what, in one pass over the rows, every sequence at the same thresholds.
Seen watched_pass(Routed& routed, const Rows& rows, std::span<const float> thresholds) {
  const ArenaScope scope(routed.ctx);
  const Batch batch = make_batch(routed.ctx, rows);
  const auto base = routed.policy->make_state(routed.ctx, routed.model.config, batch.sequences);
  auto& state = static_cast<SkipState&>(*base);
  for (int32_t s = 0; s < batch.sequences; ++s) state.set_thresholds(routed.ctx, s, thresholds);
  Seen seen;
  forward(routed.ctx, routed.model, batch, FreshPass{}, Watch(*routed.policy, seen), state);
  return seen;
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

// Text whose scores lie elsewhere: the same text, with thresholds that are moved by what 15 % of the rows
// are.
TEST(Calibration, SteeringMeetsABudgetThatThresholdsMiss) {
  for (const char* json : {R"({"name": "gate_skip"})", R"({"name": "mixture_of_depths"})",
                           R"({"name": "calm", "confidence": "similarity"})"}) {
    Routed routed(json);
    CalibrateOptions options;
    options.budgets = {0.8f};
    options.k_type = options.v_type = DType::kF32;
    const Rows rows = quiet_rows(20, 1, 110);
    const CalibrationPoint point =
        calibrate(routed.ctx, routed.model, *routed.policy, {rows}, options).asked().at(0);
    ASSERT_EQ(point.steering.size(), 3 * point.thresholds.size());
    CalibrationPoint moved = point;
    for (size_t unit = 0; unit < point.thresholds.size(); ++unit)
      moved.thresholds[unit] += 0.3f * point.steering[point.thresholds.size() + unit];
    const float alone = std::abs(routed.achieved(rows, moved.thresholds) - 0.8f);
    EXPECT_GT(alone, 0.05f) << json;
    EXPECT_LT(std::abs(routed.achieved(rows, moved.settings()) - 0.8f), 0.6f * alone) << json;
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

TEST(Calibration, GoesThroughJson) {
  Calibration table;
  table.weight_type = "q4_1";
  table.points = {{0.9f, NAN, NAN, {0.25f, -INFINITY}},
                  {0.8f, 0.79f, 0.81f, {0.5f, 0.1f}, 0.6f, {0.8f, 0.82f}}};
  table.kinds = {"news", "novels"};
  table.qualities = {{"kl", 0.1f, 0.9f, 0.08f, "novels"}, {"ppl", 1.1f, 0.8f, 1.09f, "news"}};
  const std::vector<Calibration> back = calibrations_from_json(calibrations_to_json({&table, 1}), 2, "table");
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].weight_type, "q4_1");
  ASSERT_EQ(back[0].points.size(), 2u);
  EXPECT_EQ(back[0].points[0].thresholds, table.points[0].thresholds);
  EXPECT_EQ(back[0].points[1].achieved, 0.79f);
  EXPECT_EQ(back[0].points[1].checked, 0.81f);
  EXPECT_EQ(back[0].points[1].held, 0.6f);
  EXPECT_EQ(back[0].kinds, table.kinds);
  EXPECT_EQ(back[0].points[1].of_kinds, table.points[1].of_kinds);
  ASSERT_EQ(back[0].qualities.size(), 2u);
  EXPECT_EQ(back[0].qualities[1].measure, "ppl");
  EXPECT_EQ(back[0].qualities[1].bound, 1.09f);
  EXPECT_EQ(back[0].qualities[1].kind, "news");
  // A limit is kept by what keeps a stricter one.
  EXPECT_EQ(back[0].budget_for("kl", 0.1f), 0.9f);
  EXPECT_EQ(back[0].budget_for("kl", 0.3f), 0.9f);
  EXPECT_THROW(back[0].budget_for("kl", 0.05f), UserError);
  EXPECT_EQ(back[0].budget_for("ppl", 1.1f), 0.8f);
  // Tables of older adapters: the list of points alone.
  EXPECT_EQ(calibrations_from_json(R"({"f32": [{"budget": 0.9, "thresholds": [1, 2]}]})", 2, "table")[0]
                .points[0]
                .thresholds[1],
            2);
  EXPECT_TRUE(std::isnan(back[0].points[0].held));
  EXPECT_TRUE(std::isnan(back[0].points[0].checked));
  EXPECT_TRUE(std::isnan(back[0].points[0].achieved));
  EXPECT_FLOAT_EQ(back[0].thresholds(0.85f)[0], 0.375f);
}

TEST(Calibration, SteeringGoesThroughJsonAndLiesBetweenPoints) {
  Calibration table;
  table.weight_type = "f32";
  table.points = {{0.9f, 0.9f, NAN, {0.2f, -INFINITY}}, {0.7f, 0.7f, NAN, {0.4f, -INFINITY}}};
  table.points[0].steering = {0.8f, -1, 1, 0, 2, 0};
  table.points[1].steering = {0.6f, -1, 2, 0, 4, 0};
  const Calibration back = calibrations_from_json(calibrations_to_json({&table, 1}), 2, "table")[0];
  const std::vector<float> got = back.thresholds(0.8f), want{0.3f, -INFINITY, 0.7f, -1, 1.5f, 0, 3, 0};
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_FLOAT_EQ(got[i], want[i]) << i;
  EXPECT_EQ(back.thresholds(0.7f)[2], 0.6f);
}

TEST(Calibration, HostileTablesAreRefused) {
  const auto refused = [](const char* text) {
    EXPECT_THROW(calibrations_from_json(text, 2, "table"), UserError) << text;
  };
  refused("[]");
  refused("{");
  refused(R"({"q4_1": 3})");
  refused(R"({"q4_1": {}})");
  refused(R"({"q4_1": {"points": []}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "kinds": 3}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "kinds": [3]}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1], "kinds": ["x"]}]}})");
  refused(
      R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "qualities": [{"measure": "kl"}]}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "qualities": [{"measure": "kl",
            "limit": 0.1, "budget": 2, "bound": 0.1, "kind": "x"}]}})");
  refused(R"({"q4_1": []})");
  refused(R"({"q4_1": [{"budget": 0.9}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, "x"]}]})");
  refused(R"({"q4_1": [{"budget": 2, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.8, "achieved": 0.9, "thresholds": [1, 1]},
                       {"budget": 0.9, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 1e300, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "checked": "x", "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, 1e300]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, NaN]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "held": 1.5, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": -0.9, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1, 1, 1, 1, "x"]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1, 1, 1, 1, 1]},
                       {"budget": 0.8, "thresholds": [1, 1]}]})");
  EXPECT_TRUE(calibrations_from_json("{}", 2, "table").empty());
}

// A method that draws who runs in training serves with the share that ran there, unit by unit; its arg-max
// would run another one.
TEST(TrainedRule, KeepsTheShareOfTraining) {
  for (const char* json : {R"({"name": "skip_layer"})", R"({"name": "mixture_of_depths"})"}) {
    SCOPED_TRACE(json);
    Routed routed(json);
    std::vector<BatchRow> rows;
    for (int32_t sequence = 0; sequence < 4; ++sequence) {
      for (int32_t at = 0; at < 100; ++at)
        rows.push_back({(at * at + 31 * sequence) % 480, at, sequence, false});
    }
    const TrainingStep step{true, 5, 100, 0.6f};
    const TrainedRule rule = find_trained_rule(routed.ctx, routed.model, *routed.policy, rows, step);
    EXPECT_NEAR(rule.served, rule.trained, 0.02);
    EXPECT_GT(rule.trained, 0.2);
    const CalibrationRunner runner(routed.ctx, routed.model, *routed.policy, {});
    const std::vector<float> own(rule.thresholds.size(), NAN);
    if (routed.policy->name() == "mixture_of_depths") {  // untrained routers of SkipLayer draw for one half
      EXPECT_GT(std::abs(1 - runner.run({rows}, own).ran - rule.trained), 0.03f) << "the arg-max";
    }
    EXPECT_NEAR(1 - runner.run({rows}, rule.thresholds).ran, rule.trained, 0.02);
    const TrainedRule back = trained_rule_from_json(to_json(rule), std::ssize(rule.thresholds), "test");
    EXPECT_EQ(back.thresholds, rule.thresholds);
    EXPECT_EQ(back.trained, rule.trained);
    EXPECT_THROW(trained_rule_from_json(to_json(rule), 3, "test"), UserError);
    EXPECT_THROW(trained_rule_from_json(R"({"skip_ratio": 2})", 3, "test"), UserError);
  }
}

}  // namespace
}  // namespace fathom
