#include "skip/harm_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

std::string without(int64_t unit) {
  return R"({"name": "harm_order", "drop": [)" + std::to_string(unit) + "]}";
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
      Rig rig(std::string(R"({"name": "random", "skipped_kv": ")") + kv + "\"}");
      std::vector<std::vector<uint8_t>> kept(8, std::vector<uint8_t>(rows.size(), 1));
      std::fill(kept[static_cast<size_t>(unit)].begin(), kept[static_cast<size_t>(unit)].end(), uint8_t{0});
      const std::vector<RowSet> replay = owned_rows(kept);
      const Work work = rig.fresh(rows, {.replay = &replay}).work;
      double avoided = 0;
      for (int64_t context = 1; context <= 23; ++context)
        avoided += avoided_madds_at(rig.model.config, unit, rule, context);
      EXPECT_EQ(static_cast<double>(all - (work.madds - work.policy_madds)), avoided) << unit << " " << kv;
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
      Rig rig(without(static_cast<int64_t>(unit)), shaped);
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

// One number of a matrix (out, in).
float& at(Tensor& matrix, int64_t row, int64_t column) {
  return matrix.data<float>()[row * matrix.dim(1) + column];
}

// Every token comes with a large first number, which drowns all others in the last norm. The FFNs of layers 1
// and 2 each take it away where they find it: what one has done, the other need not.
void add_two_copies(Model& model) {
  constexpr float kLarge = 40, kSeen = 5.5f;  // before and behind a norm of width 32, about
  for (int64_t token = 0; token < model.config.vocab; ++token) at(model.weights.embedding, token, 0) = kLarge;
  for (BlockWeights& block : model.weights.blocks) {
    for (Tensor* joins : {&block.o, &block.down}) {
      for (int64_t i = 0; i < joins->dim(1); ++i) at(*joins, 0, i) = 0;  // nobody else touches it
    }
  }
  Tensor& last = model.weights.blocks[3].down;  // the next harmless one should be less so
  for (int64_t i = 0; i < last.numel(); ++i) last.data<float>()[i] *= 2;
  for (const size_t layer : {1, 2}) {
    BlockWeights& block = model.weights.blocks[layer];
    for (Tensor* matrix : {&block.gate, &block.up, &block.down})
      std::fill_n(matrix->data<float>(), matrix->numel(), 0.0f);
    block.ffn_norm.data<float>()[0] = 1;
    at(block.gate, 0, 0) = at(block.up, 0, 0) = 1;
    at(block.down, 0, 0) = -kLarge / (kSeen * kSeen);
  }
}

TEST(GreedyHarmOrder, OfTwoCopiesOnlyOneIsHarmless) {
  Rig rig(R"({"name": "dense"})");
  add_two_copies(rig.model);
  const ArenaScope scope(rig.ctx);
  const Rows rows = random_rows({14, 9, 11});
  const std::vector<Batch> batches{make_batch(rig.ctx, rows)};
  const std::vector<int32_t> nobody;
  const PrepareInput input = prepare_input(rig.model, batches, nobody);
  const std::vector<int64_t> once = harm_order(rig.ctx, input, 1),
                             greedy = greedy_harm_order(rig.ctx, input, 0.5, 1);
  EXPECT_EQ((std::vector<int64_t>{std::min(once[0], once[1]), std::max(once[0], once[1])}),
            (std::vector<int64_t>{3, 5}))
      << "each alone is harmless";
  EXPECT_EQ(greedy[0], once[0]);
  EXPECT_NE(greedy[1], once[1]);
  const std::vector<float> full = rig.fresh(rows).logits;
  const auto harm_of_two = [&](const std::vector<int64_t>& order) {
    Rig without(R"({"name": "harm_order", "drop": [)" + std::to_string(order[0]) + ", " +
                std::to_string(order[1]) + "]}");
    add_two_copies(without.model);
    return mean_kl(full, without.fresh(rows).logits, 48);
  };
  EXPECT_LT(harm_of_two(greedy), 0.5 * harm_of_two(once));
  // What the second round measured is what the second pair does.
  std::vector<uint8_t> gone(8, 0);
  gone[static_cast<size_t>(greedy[0])] = 1;
  const std::vector<double> second = unit_harm(rig.ctx, input, gone);
  EXPECT_NEAR(second[static_cast<size_t>(greedy[1])], harm_of_two(greedy), 1e-4);
  EXPECT_NEAR(second[static_cast<size_t>(once[1])], harm_of_two(once), 1e-4);
  EXPECT_TRUE(std::isinf(second[static_cast<size_t>(greedy[0])]));
}

TEST(GreedyHarmOrder, StopsAtItsShareAndKeepsTheProtectedLast) {
  Rig rig(R"({"name": "dense"})");
  const ArenaScope scope(rig.ctx);
  const std::vector<Batch> batches{make_batch(rig.ctx, random_rows({12, 9}))};
  const std::vector<int32_t> nobody, second{1};
  const auto madds = [&](auto&& fn) {
    const uint64_t before = rig.ctx.counters().total().madds;
    fn();
    return rig.ctx.counters().total().madds - before;
  };
  const auto greedy = [&](double until, const std::vector<int32_t>& protect) {
    return greedy_harm_order(rig.ctx, prepare_input(rig.model, batches, protect), until, 16);
  };
  const uint64_t little = madds([&] { greedy(0.9, nobody); }), much = madds([&] { greedy(0.3, nobody); });
  EXPECT_LT(2 * little, much);
  for (const double until : {0.9, 0.0}) {
    std::vector<int64_t> order = greedy(until, second);
    EXPECT_EQ(order[6] / 2, 1);
    EXPECT_EQ(order[7] / 2, 1);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  // Its first unit is the plain order's, and the rest follows as last measured: here that was the first time.
  EXPECT_EQ(greedy(1, nobody), harm_order(rig.ctx, prepare_input(rig.model, batches, nobody), 16));
}

// Ctrl-C is heard between two units' passes.
TEST(HarmOrder, CanBeCancelled) {
  Rig rig(R"({"name": "dense"})");
  const ArenaScope scope(rig.ctx);
  const std::vector<Batch> batches{make_batch(rig.ctx, random_rows({12, 9}))};
  const std::vector<int32_t> nobody;
  const std::atomic<bool> cancel{true};
  PrepareInput input = prepare_input(rig.model, batches, nobody);
  const auto work = [&] { return rig.ctx.counters().total().madds; };
  unit_harm(rig.ctx, input);
  const uint64_t whole = work();
  input.cancel = &cancel;
  EXPECT_THROW(unit_harm(rig.ctx, input), PrepareCancelled);
  EXPECT_LT(work() - whole, whole / 3) << "the pass at full depth, and no more";
  EXPECT_THROW(greedy_harm_order(rig.ctx, input, 0.5), PrepareCancelled);
  for (const char* name : {"harm_order", "attention_drop", "short_gpt"}) {
    const std::unique_ptr<MethodPolicy> policy =
        MethodPolicy::from_json(std::string(R"({"name": ")") + name + "\"}", "test");
    EXPECT_THROW(policy->prepare(rig.ctx, rig.model, batches, true, &cancel), PrepareCancelled) << name;
  }
}

TEST(HarmOrder, NeedsText) {
  Rig rig(R"({"name": "dense"})");
  const std::vector<int32_t> nobody;
  EXPECT_THROW(unit_harm(rig.ctx, prepare_input(rig.model, {}, nobody)), UserError);
}

}  // namespace
}  // namespace fathom
