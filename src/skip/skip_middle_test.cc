#include "skip/training_test.h"

namespace fathom {
namespace {

// Gates that depend on their bias alone: g is the same for every row.
void set_gates(Rig& rig, std::vector<float> biases) {
  size_t block = 0;
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    const bool bias = parameter.name.ends_with("bias");
    std::fill_n(parameter.tensor->data<float>(), parameter.tensor->numel(), bias ? biases[block++] : 0.0f);
  }
}

std::vector<float> dense_logits(Rig& rig, const Rows& rows) {
  const ArenaScope scope(rig.ctx);
  PolicyState state;
  const Tensor logits =
      forward(rig.ctx, rig.model, make_batch(rig.ctx, rows), FreshPass{}, DensePolicy(), state);
  return {logits.data<float>(), logits.data<float>() + logits.numel()};
}

TEST(SkipMiddle, AnOddNumberOfLayersIsRefused) {
  ModelConfig config = tiny_config();
  config.layers = 3;
  config.windows.resize(3);
  try {
    Rig rig(R"({"name": "skip_middle"})", config);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "skip_middle: needs an even number of layers to mirror, the model has 3");
  }
}

// I1.
TEST(SkipMiddle, ZeroGatesAreTheDenseModel) {
  Rig rig(R"({"name": "skip_middle"})", Shaped::kSandwich);
  set_gates(rig, {0, 0});
  const Rows rows = random_rows({9, 5});
  const Seen seen = rig.fresh(rows);
  const std::vector<float> dense = dense_logits(rig, rows);
  for (size_t i = 0; i < dense.size(); ++i) ASSERT_NEAR(seen.logits[i], dense[i], 1e-5);
  EXPECT_EQ(skipped_share(seen), 0);
  // Without the keys' bias of 0, which attention adds in another loop, bit for bit.
  Rig unbiased(R"({"name": "skip_middle", "gate_axis": "none"})", Shaped::kSandwich);
  Rig plain(R"({"name": "dense"})", Shaped::kSandwich);
  set_gates(unbiased, {0, 0});
  TinyRun cached(unbiased, 2), expected(plain, 2);
  EXPECT_EQ(cached.pass(rows).logits, expected.pass(rows).logits);
}

TEST(SkipMiddle, ScoresAddUpAndAreMirrored) {
  Rig rig(R"({"name": "skip_middle"})");
  const Rows rows = random_rows({6});
  set_gates(rig, {0.25f, 0.5f});
  Seen seen = rig.fresh(rows);
  const std::vector<float> gates{0.75f, 0.75f, 0.25f, 0.25f, 0.25f, 0.25f, 0.75f, 0.75f};
  for (size_t unit = 0; unit < 8; ++unit) {
    EXPECT_EQ(seen.scores[unit][3], gates[unit]) << unit;
    EXPECT_EQ(seen.kept[unit][3], 1) << unit;
  }
  set_gates(rig, {0.25f, 0.75f});  // S = 1: the middle is skipped, both its units
  seen = rig.fresh(rows);
  for (size_t unit = 0; unit < 8; ++unit) EXPECT_EQ(seen.kept[unit][3], unit < 2 || unit >= 6) << unit;
  set_gates(rig, {-1.0f, -1.0f});  // negative scores count as none
  EXPECT_EQ(rig.fresh(rows).scores[2][0], 1.0f);
}

// The gate scales both branches: with pre-norm blocks that is scaling the matrices that end them.
TEST(SkipMiddle, TheGateScalesBothBranches) {
  Rig rig(R"({"name": "skip_middle", "gate_axis": "none"})");
  set_gates(rig, {0.25f, 0.5f});
  const Rows rows = random_rows({9, 5});
  const std::vector<float> gated = rig.fresh(rows).logits;
  const std::vector<float> gates{0.75f, 0.25f, 0.25f, 0.75f};
  for (size_t layer = 0; layer < 4; ++layer) {
    for (Tensor* w : {&rig.model.weights.blocks[layer].o, &rig.model.weights.blocks[layer].down}) {
      for (int64_t i = 0; i < w->numel(); ++i) w->data<float>()[i] *= gates[layer];
    }
  }
  const std::vector<float> expected = dense_logits(rig, rows);
  for (size_t i = 0; i < gated.size(); ++i) ASSERT_NEAR(gated[i], expected[i], 1e-4);
}

// On the query's side softmax cancels the bias; on the key's it does not.
TEST(SkipMiddle, OnlyTheKeyAxisMatters) {
  const Rows rows = random_rows({12, 7});
  const auto logits = [&](const std::string& axis) {
    Rig rig(R"({"name": "skip_middle", "gate_axis": ")" + axis + "\"}");
    return rig.fresh(rows).logits;
  };
  EXPECT_EQ(logits("query"), logits("none"));
  EXPECT_NE(logits("key"), logits("none"));
}

// An entry for each row that ran, with its ln g; none for a row that skipped.
TEST(SkipMiddle, TheCacheHoldsTheKeptRowsAndTheirBias) {
  Rig rig(R"({"name": "skip_middle"})");
  const Rows rows = random_rows({25});
  TinyRun session(rig, 1);
  const Seen seen = session.pass(rows);
  EXPECT_GT(skipped_share(seen), 0.1);
  EXPECT_LT(skipped_share(seen), 0.9);
  for (size_t layer = 0; layer < 4; ++layer) {
    const KvView& view = session.cache().layer(static_cast<int64_t>(layer));
    int32_t entries = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (!seen.kept[2 * layer][r]) continue;
      EXPECT_EQ(view.positions.data<int32_t>()[entries], static_cast<int32_t>(r));
      EXPECT_NEAR(view.bias.data<float>()[entries], std::log(std::max(1e-6f, seen.scores[2 * layer][r])),
                  1e-5);
      ++entries;
    }
    EXPECT_EQ(view.lengths.data<int32_t>()[0], entries) << "layer " << layer;
  }
}

// A threshold per block: whoever is below one skips up to the mirror, even where the next would let it in.
TEST(SkipMiddle, AtABudgetWhoSkipsStaysOut) {
  Rig rig(R"({"name": "skip_middle"})");
  set_gates(rig, {0.25f, 0.25f});  // g = 0.75, 0.5
  const Rows rows = random_rows({5});
  const auto kept = [&](float first, float second) {
    rig.thresholds = {first, 0, second, 0, 0, 0, 0, 0};
    const Seen seen = rig.fresh(rows);
    std::vector<int> layers;
    for (size_t layer = 0; layer < 4; ++layer) layers.push_back(seen.kept[2 * layer][2]);
    return layers;
  };
  EXPECT_EQ(kept(0.0f, 0.0f), (std::vector<int>{1, 1, 1, 1}));
  EXPECT_EQ(kept(0.0f, 0.6f), (std::vector<int>{1, 0, 0, 1}));
  EXPECT_EQ(kept(0.8f, 0.0f), (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(kept(0.8f, -1.0f), (std::vector<int>{0, 0, 0, 0}));
}

// What calibration gathers: g of the lower blocks' rows that are still open.
TEST(SkipMiddle, ScoresOfWhoIsOpenAreGathered) {
  Rig rig(R"({"name": "skip_middle"})");
  set_gates(rig, {0.25f, 0.25f});  // g = 0.75, 0.5
  const auto gathered = [&](const std::vector<float>& thresholds) {
    rig.thresholds = thresholds;
    TinyRun session(rig, 1);
    std::vector<std::vector<float>> scores(8);
    session.state().pass.collect = &scores;
    session.pass(random_rows({3}));
    return scores;
  };
  std::vector<std::vector<float>> expected(8);
  expected[0] = {0.75f, 0.75f, 0.75f};
  expected[2] = {0.5f, 0.5f, 0.5f};
  EXPECT_EQ(gathered({}), expected);
  EXPECT_EQ(gathered({0.7f, 0, 0, 0, 0, 0, 0, 0}), expected);
  expected[2] = {0, 0, 0};
  EXPECT_EQ(gathered({0.8f, 0, 0, 0, 0, 0, 0, 0}), expected);
}

struct Step {
  double penalty = 0;            // of the step's loss
  std::vector<float> mean, var;  // coefficients after it, per lower block
};

// One training step per pair of biases.
std::vector<Step> steps(const std::string& extra, const std::vector<std::vector<float>>& biases) {
  const Rows rows = random_rows({8, 3});
  Rig rig(R"({"name": "skip_middle")" + extra + "}"),
      plain(R"({"name": "skip_middle", "controller": "none"})");
  TinyTrainer trainer(rig), without(plain);
  std::vector<Step> all;
  for (const auto& pair : biases) {
    set_gates(rig, pair);
    set_gates(plain, pair);
    Step step;
    const std::unique_ptr<SkipState> state = rig.make_state(2);
    step.penalty =
        trainer.run(rows, {}, false, nullptr, state.get()).loss - without.run(rows, {}, false).loss;
    rig.policy->observe(rig.ctx, *state, 0);
    after_step(rig);
    state->pass.units.clear();
    const std::vector<float*> values = rig.policy->controllers();
    step.mean = {*values[1], *values[4]};
    step.var = {*values[7], *values[10]};
    all.push_back(step);
  }
  return all;
}

// g = 0.75 and 0.25 without variance; targets 1 and 0.5, of the variance 0 and 0.25.
const std::vector<float> kBiases{0.25f, 0.5f};

TEST(SkipMiddle, FixedControllers) {
  EXPECT_NEAR(steps("", {kBiases})[0].penalty, 0, 1e-6);  // coefficients start at 0
  EXPECT_NEAR(steps(R"(, "controller": "sparsity", "mean_weight": 0.4)", {kBiases})[0].penalty,
              0.4 * (0.75 + 0.25 + 0.25 + 0.75) / 4, 1e-5);
  EXPECT_NEAR(steps(R"(, "controller": "sparsity_variance_l2", "l2_weight": 2)", {kBiases})[0].penalty,
              2 * (0.0625 + 0.0625 + 0.0625) * 2 / 4, 1e-5);  // both means and one variance are 0.25 off
  // Half the rows far out: variance counts. (The weights are noise again.)
  Rig rig(
      R"({"name": "skip_middle", "controller": "sparsity_variance", "mean_weight": 0, "variance_weight": -3})");
  Rig plain(R"({"name": "skip_middle", "controller": "none"})");
  TinyTrainer trainer(rig), without(plain);
  const Rows rows = random_rows({8, 3});
  const Trained got = trainer.run(rows, {}, false), bare = without.run(rows, {}, false);
  double expected = 0;
  for (size_t layer = 0; layer < 4; ++layer) {
    const std::vector<float>& g = got.seen.scores[2 * layer];
    double mean = 0, square = 0;
    for (const float x : g) mean += static_cast<double>(x) / static_cast<double>(g.size());
    for (const float x : g) square += std::pow(static_cast<double>(x) - mean, 2);
    expected -= 3 * square / static_cast<double>(g.size()) / 4;
  }
  EXPECT_NEAR(got.loss - bare.loss, expected, 1e-5);
  EXPECT_LT(expected, -0.01);
}

TEST(SkipMiddle, AdaptiveControllersFollowTheirRules) {
  const std::vector<float> none{0, 0};
  Step step = steps(R"(, "controller": "proportional")", {kBiases})[0];
  EXPECT_EQ(step.mean, (std::vector<float>{-0.25e-3f, -0.25e-3f}));
  EXPECT_EQ(step.var, (std::vector<float>{0, -0.25e-3f}));
  step = steps(R"(, "controller": "adaptive")", {kBiases})[0];
  EXPECT_EQ(step.mean, (std::vector<float>{-1e-3f, -1e-3f}));
  EXPECT_EQ(step.var, (std::vector<float>{0, -1e-3f}));
  // Too many rows run: the coefficient rises, and falls again when too few do (eq. 6 with |·|).
  const std::vector<Step> both =
      steps(R"(, "controller": "proportional", "first_target": 0.5, "rate": 0.1)", {{0, 0}, {0.75f, 0}});
  EXPECT_NEAR(both[0].mean[0], 0.05, 1e-6);
  EXPECT_NEAR(both[1].mean[0], 0.05 - 0.025, 1e-6);
  // The next loss has the coefficients: (α ḡ + β s²) / L.
  EXPECT_NEAR(both[1].penalty, (0.05 * 0.25 + 0.05 * 0.25) * 2 / 4, 1e-5);
  // Within the tolerance nothing moves.
  EXPECT_EQ(steps(R"(, "controller": "proportional", "tolerance": 0.3)", {kBiases})[0].mean, none);
  EXPECT_EQ(steps(R"(, "controller": "adaptive", "final_target": 0.255)", {kBiases})[0].mean[1], 0);
}

// At the first step every block's short and long averages are the distance itself.
TEST(SkipMiddle, AllMovingAveragesStartAlike) {
  Rig rig(R"({"name": "skip_middle", "controller": "proportional_derivative"})");
  TinyTrainer trainer(rig);
  set_gates(rig, kBiases);
  const std::unique_ptr<SkipState> state = rig.make_state(2);
  trainer.run(random_rows({8, 3}), {}, false, nullptr, state.get());
  rig.policy->observe(rig.ctx, *state, 0);
  after_step(rig);
  state->pass.units.clear();
  const std::vector<float*> values = rig.policy->controllers();  // started; value, short, long of each
  const float distances[] = {-0.25f, -0.25f, 0, -0.25f};         // both means, both variances
  EXPECT_EQ(*values[0], 1);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(*values[1 + 3 * i + 1], distances[i], 1e-6) << i;
    EXPECT_EQ(*values[1 + 3 * i + 2], *values[1 + 3 * i + 1]) << i;
  }
}

TEST(SkipMiddle, TheDerivativeMovesOnlyWhileTheDistanceGrows) {
  const std::string extra = R"(, "controller": "proportional_derivative", "first_target": 0.5)";
  const std::vector<Step> all = steps(extra, {{0.25f, 0}, {0.125f, 0}, {0.25f, 0}});
  EXPECT_EQ(all[0].mean[0], 0);  // 0.25 too much, but nothing to compare with
  EXPECT_NEAR(all[1].mean[0], 1e-2 * 0.375, 1e-7);
  EXPECT_EQ(all[2].mean[0], all[1].mean[0]);  // 0.25 is below the long mean of 0.2625
}

}  // namespace
}  // namespace fathom
