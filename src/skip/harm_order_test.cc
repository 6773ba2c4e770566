#include "skip/harm_order.h"

#include <gtest/gtest.h>

#include <numeric>

#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

std::string without(int64_t unit, const char* kv) {
  return R"({"name": "harm_order", "drop": [)" + std::to_string(unit) + R"(], "skipped_kv": ")" + kv + "\"}";
}

double mean_kl(const std::vector<float>& full, const std::vector<float>& other, size_t vocab) {
  const auto log_sum = [&](const float* x) {
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{x[i]});
    return std::log(sum);
  };
  double total = 0;
  for (size_t at = 0; at < full.size(); at += vocab) {
    const float *p = full.data() + at, *q = other.data() + at;
    const double lp = log_sum(p), lq = log_sum(q);
    for (size_t i = 0; i < vocab; ++i)
      total += std::exp(double{p[i]} - lp) * ((double{p[i]} - lp) - (double{q[i]} - lq));
  }
  return total / static_cast<double>(full.size() / vocab);
}

PrepareInput prepare_input(const Model& model, std::span<const Batch> batches,
                           const std::vector<int32_t>& protect) {
  return {model, batches, SkippedKv::kProject, true, protect};
}

// The closed form against what the kernels count: a unit dropped for all rows of one sequence.
TEST(AvoidedMadds, AreWhatTheKernelsDoNotDo) {
  const Rows rows = random_rows({23});
  for (const auto& [kv, rule] : {std::pair{"project", SkippedKv::kProject}, {"hide", SkippedKv::kHide}}) {
    Rig dense(R"({"name": "dense"})");
    const uint64_t all = dense.fresh(rows).work.madds;
    for (const int64_t unit : {0, 3, 4}) {
      Rig rig(without(unit, kv));
      double avoided = 0;
      for (int64_t context = 1; context <= 23; ++context)
        avoided += avoided_madds_at(rig.model.config, unit, rule, context);
      EXPECT_EQ(static_cast<double>(all - rig.fresh(rows).work.madds), avoided) << unit << " " << kv;
    }
  }
}

TEST(AvoidedMadds, ByHand) {
  const ModelConfig c = tiny_config();  // width 32, q 32, kv 16, ffn 40
  EXPECT_EQ(avoided_madds(c, Unit::kFfn, SkippedKv::kProject, 1024), 3 * 32 * 40);
  EXPECT_EQ(avoided_madds(c, Unit::kAttention, SkippedKv::kProject, 1024), 2 * 32 * 32 + 2 * 1024 * 32);
  EXPECT_EQ(avoided_madds(c, Unit::kAttention, SkippedKv::kCopyFromBelow, 100),
            2 * 32 * 32 + 2 * 100 * 32 + 2 * 32 * 16);
  // The first layer has none below: its keys and values are projected all the same.
  EXPECT_EQ(avoided_madds_at(c, 0, SkippedKv::kCopyFromBelow, 100), 2 * 32 * 32 + 2 * 100 * 32);
  EXPECT_EQ(avoided_madds_at(c, 2, SkippedKv::kCopyFromBelow, 100),
            avoided_madds_at(c, 2, SkippedKv::kHide, 100));
  EXPECT_EQ(unit_madds(c, 2, 100), avoided_madds_at(c, 2, SkippedKv::kHide, 100));
}

// Against whole passes under a policy that drops one unit.
TEST(UnitHarm, IsTheDivergenceWithoutTheUnit) {
  const std::vector<Rows> texts{random_rows({9, 14}, 1), random_rows({6}, 2)};
  for (const Shaped shaped : {Shaped::kLlama, Shaped::kSandwich}) {
    Rig dense(R"({"name": "dense"})", shaped);
    const ArenaScope scope(dense.ctx);
    std::vector<Batch> batches;
    for (const Rows& rows : texts) batches.push_back(make_batch(dense.ctx, rows));
    const std::vector<int32_t> protect;
    const std::vector<double> harm = unit_harm(dense.ctx, prepare_input(dense.model, batches, protect));
    ASSERT_EQ(harm.size(), 8u);
    for (size_t unit = 0; unit < harm.size(); ++unit) {
      Rig rig(without(static_cast<int64_t>(unit), "project"), shaped);
      double sum = 0;
      for (const Rows& rows : texts)
        sum +=
            static_cast<double>(rows.size()) * mean_kl(dense.fresh(rows).logits, rig.fresh(rows).logits, 48);
      EXPECT_NEAR(harm[unit], sum / 29, 1e-5 + 1e-4 * harm[unit]) << unit;
      EXPECT_GT(harm[unit], 1e-4);
    }
  }
}

TEST(HarmOrder, LeastHarmPerCostFirstAndProtectedLast) {
  Rig rig(R"({"name": "dense"})");
  const ArenaScope scope(rig.ctx);
  const std::vector<Batch> batches{make_batch(rig.ctx, random_rows({12, 9}))};
  const std::vector<int32_t> nobody, first{1};
  const std::vector<double> harm = unit_harm(rig.ctx, prepare_input(rig.model, batches, nobody));
  const auto rate = [&](int64_t unit) {
    return harm[static_cast<size_t>(unit)] /
           avoided_madds_at(rig.model.config, unit, SkippedKv::kProject, 1024);
  };
  const std::vector<int64_t> order = harm_order(rig.ctx, prepare_input(rig.model, batches, nobody));
  for (size_t i = 1; i < order.size(); ++i) EXPECT_LE(rate(order[i - 1]), rate(order[i]));
  const std::vector<int64_t> guarded = harm_order(rig.ctx, prepare_input(rig.model, batches, first));
  EXPECT_EQ(guarded[6] / 2, 1);
  EXPECT_EQ(guarded[7] / 2, 1);
  // What attention costs depends on the context that is counted with.
  EXPECT_NE(harm_order(rig.ctx, prepare_input(rig.model, batches, nobody), 1), order);
}

TEST(HarmOrder, NeedsText) {
  Rig rig(R"({"name": "dense"})");
  const std::vector<int32_t> nobody;
  EXPECT_THROW(unit_harm(rig.ctx, prepare_input(rig.model, {}, nobody)), UserError);
}

}  // namespace
}  // namespace fathom
