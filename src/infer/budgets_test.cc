// The invariants with everything on: sequences at different calibrated budgets, at full depth and by the
// method's own rule in one batch, quantised weights and caches, slots that are left and taken over.
#include "infer/budgets.h"

#include <gtest/gtest.h>

#include <cmath>

#include "infer/calibrate.h"
#include "infer/every_method_test.h"
#include "infer/quality.h"
#include "infer/speculative_policy.h"
#include "model/load.h"

namespace fathom {
namespace {

struct Types {
  DType weights, cache;
};
constexpr Types kTypes[] = {
    {DType::kF32, DType::kF32}, {DType::kQ8_0, DType::kQ8_0}, {DType::kQ4_0, DType::kF16}};

using Thresholds = std::vector<std::vector<float>>;  // thresholds of each; empty: the method's own rule

// The method's own rule, full depth and three budgets: of its list, or calibrated, one of them between two
// points.
Thresholds budgets_of(Rig& rig) {
  const auto units = static_cast<size_t>(2 * rig.model.config.layers);
  Thresholds all{{}, std::vector<float>(units, -INFINITY)};
  if (const UnitList list = rig.policy->list(rig.model.config); !list.order.empty()) {
    for (const double budget : {0.6, 0.75, 0.9})
      all.push_back(list.thresholds(budget, 2 * rig.model.config.layers));
    return all;
  }
  CalibrateOptions options;
  options.budgets = {0.9f, 0.75f, 0.6f};
  options.all_budgets = false;
  Rows rows = random_rows({30, 25, 30}, 99);
  for (BatchRow& row : rows) row.wants_logits = false;
  try {
    const Calibration table = calibrate(rig.ctx, rig.model, *rig.policy, {rows}, options);
    const float least = table.points.back().budget, most = table.points.front().budget;
    for (const float budget : {least, least + 0.4f * (most - least), least + 0.8f * (most - least)})
      all.push_back(table.thresholds(budget));
  } catch (const UserError&) {  // a method without budgets: its own rule, whoever is beside
  }
  return all;
}

class InOneBatch : public testing::TestWithParam<std::string> {
 protected:
  InOneBatch() : rig_(GetParam(), blocks_config()), budgets_(budgets_of(rig_)) {}

  void set(TinyRun& session, int32_t slot, int32_t sequence) {
    const std::vector<float>& thresholds = budgets_[static_cast<size_t>(sequence) % budgets_.size()];
    if (thresholds.empty()) {
      session.state().clear_thresholds(rig_.ctx, slot);
    } else {
      session.state().set_thresholds(rig_.ctx, slot, thresholds);
    }
  }
  // Each sequence by itself, in slot 1, one row after another.
  void alone(const Rows& rows, int32_t sequence, DType type, ByRow& logits, ByRow& kept) {
    TinyRun session(rig_, 2, type);
    set(session, 1, sequence);
    for (BatchRow row : rows) {
      if (row.sequence != sequence) continue;
      row.sequence = 1;
      collect({row}, session.pass({row}), logits, kept);
    }
  }

  Rig rig_;
  Thresholds budgets_;
};

TEST_P(InOneBatch, EachSequenceIsAsItIsAlone) {
  std::vector<int> lengths;
  for (int s = 0; s < 64; ++s) lengths.push_back(s < 6 ? 9 + s : 1 + s % 5);
  const Rows rows = random_rows(lengths);
  const std::vector<Tensor> f32 = [&] {
    std::vector<Tensor> all;
    for (const WeightSpec& spec : weight_specs(rig_.model.config, rig_.model.weights))
      all.push_back(*spec.tensor);
    return all;
  }();
  for (const Types types : kTypes) {
    size_t next = 0;
    for (const WeightSpec& spec : weight_specs(rig_.model.config, rig_.model.weights))
      *spec.tensor = f32[next++];
    if (types.weights != DType::kF32) convert_weights(rig_.ctx, rig_.model, types.weights, true);
    ByRow expected, expected_kept, got, got_kept;
    for (int32_t s = 0; s < 64; ++s) alone(rows, s, types.cache, expected, expected_kept);
    TinyRun together(rig_, 64, types.cache);
    for (int32_t s = 0; s < 64; ++s) set(together, s, s);
    collect(rows, together.pass(rows), got, got_kept);
    EXPECT_TRUE(got_kept == expected_kept) << "decisions, " << name_of(types.weights);
    EXPECT_TRUE(got == expected) << "logits, " << name_of(types.weights);
  }
}

// Three slots for nine sequences: a slot whose sequence has ended is taken over by the next, at its own
// budget. Prompts come in pieces beside the others' single rows.
TEST_P(InOneBatch, SequencesJoinAndLeave) {
  const Rows rows = random_rows({8, 3, 14, 6, 1, 11, 5, 9, 4}, 6);
  std::vector<Rows> waiting(9);
  for (const BatchRow& row : rows) waiting[static_cast<size_t>(row.sequence)].push_back(row);
  ByRow expected, expected_kept, got, got_kept;
  for (int32_t s = 0; s < 9; ++s) alone(rows, s, DType::kF16, expected, expected_kept);

  TinyRun session(rig_, 3, DType::kF16);
  std::vector<Rows> left(3);
  int32_t next = 0;
  Rng rng(4);
  for (bool more = true; more;) {
    Rows pass;
    for (int32_t slot = 0; slot < 3; ++slot) {
      Rows& mine = left[static_cast<size_t>(slot)];
      if (mine.empty() && next < 9) {
        session.state().truncate(rig_.ctx, slot, 0);
        session.cache().truncate(rig_.ctx, slot, 0);
        set(session, slot, next);
        mine = waiting[static_cast<size_t>(next++)];
      }
      const size_t take = std::min<size_t>(mine.size(), mine.size() > 4 ? 1 + rng.below(4) : 1);
      for (size_t i = 0; i < take; ++i) {
        pass.push_back(mine[i]);
        pass.back().sequence = slot;
      }
      mine.erase(mine.begin(), mine.begin() + static_cast<int64_t>(take));
    }
    if (!pass.empty()) collect(pass, session.pass(pass), got, got_kept);
    more = !pass.empty();
  }
  EXPECT_TRUE(got_kept == expected_kept);
  EXPECT_TRUE(got == expected);
}

// The cases are not all the same case: where there are budgets, they skip, and more the smaller they are.
TEST_P(InOneBatch, BudgetsDiffer) {
  if (budgets_.size() == 2) GTEST_SKIP() << "has no budgets";
  const Rows rows = random_rows({40, 30}, 7);
  std::vector<double> skipped;
  for (int32_t budget = 1; budget < 5; ++budget) {
    TinyRun session(rig_, 2);
    for (int32_t slot = 0; slot < 2; ++slot) set(session, slot, budget);
    skipped.push_back(skipped_share(session.pass(rows)));
  }
  if (rig_.policy->opens_fully()) {
    EXPECT_EQ(skipped[0], 0);
  }
  EXPECT_GT(skipped[1], skipped[3]);
  EXPECT_GE(skipped[1], skipped[2]);
  EXPECT_GE(skipped[2], skipped[3]);
  EXPECT_GE(skipped[3], skipped[0]);
}

TEST(Budgets, OfADenseModelIsOneOrAnError) {
  const Budgets dense;
  EXPECT_TRUE(dense.empty());
  EXPECT_TRUE(dense.calibrated().empty());
  EXPECT_TRUE(dense.thresholds(1).empty());
  const auto refusal = [](auto ask) {
    try {
      ask();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string why =
      "needs an adapter with a calibration table; this is a dense model without a skipping method, which "
      "runs "
      "everything";
  EXPECT_EQ(refusal([&] { dense.thresholds(0.8); }), "a budget of 0.8 " + why);
  EXPECT_EQ(refusal([&] { dense.budget_for({"kl", 0.1f}); }), "a bound on kl " + why);
  for (const double budget : {0.0, 1.5, std::nan("")}) {
    EXPECT_EQ(refusal([&] { dense.thresholds(budget); }).find("a budget must be above 0 and at most 1"), 0U);
  }
}

TEST(Thresholds, APolicyWithoutAnyRefusesThem) {
  Context ctx;
  const DensePolicy dense;
  const std::unique_ptr<PolicyState> state = dense.make_state(ctx, tiny_config(), 1);
  state->clear_thresholds(ctx, 0);  // there is nothing to clear
  try {
    state->set_thresholds(ctx, 0, std::vector<float>(8));
    FAIL() << "thresholds were taken";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("this policy has no thresholds to set"), std::string::npos);
  }
}

TEST(Thresholds, ReachTheMethodThroughSpeculation) {
  Rig rig(R"({"name": "gate_skip"})");
  const SpeculativePolicy policy(*rig.policy);
  const std::unique_ptr<PolicyState> state = policy.make_state(rig.ctx, rig.model.config, 2);
  const SkipState& method = *skip_state_of(*state);
  const std::vector<float> thresholds(static_cast<size_t>(2 * rig.model.config.layers), 0.5f);
  state->set_thresholds(rig.ctx, 1, thresholds);
  EXPECT_TRUE(method.thresholds.any());
  state->clear_thresholds(rig.ctx, 1);
  EXPECT_FALSE(method.thresholds.any());
}

INSTANTIATE_TEST_SUITE_P(All, InOneBatch, testing::ValuesIn(every_method()), method_test_name);

}  // namespace
}  // namespace fathom
