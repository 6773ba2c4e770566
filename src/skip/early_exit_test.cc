#include <gtest/gtest.h>

#include "ops/loss/cross_entropy.h"
#include "ops/rows/row_confidence.h"
#include "skip/dense_walk.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

Model shallow(Model model, int64_t layers) {
  model.config.layers = layers;
  model.config.windows.resize(static_cast<size_t>(layers));
  model.weights.blocks.resize(static_cast<size_t>(layers));
  return model;
}

struct Losses {
  std::vector<double> ce;                  // (L): of the model cut after each block
  std::vector<std::vector<float>> states;  // (L): after each block
};

// Targets are the next row's token, all rows weigh the same.
std::vector<int32_t> next_tokens(const Rows& rows) {
  std::vector<int32_t> targets;
  for (size_t r = 0; r < rows.size(); ++r) targets.push_back(rows[(r + 1) % rows.size()].token);
  return targets;
}

Losses layer_losses(Rig& rig, const Rows& rows) {
  Losses losses;
  const std::vector<int32_t> targets = next_tokens(rows);
  for (int64_t layers = 1; layers <= rig.model.config.layers; ++layers) {
    const ArenaScope scope(rig.ctx);
    const Batch batch = make_batch(rig.ctx, rows);
    const Model cut = shallow(rig.model, layers);
    const DenseWalk walk(rig.ctx, cut, batch);
    Tensor h = walk.start();
    const Tensor logits = walk.finish(0, h);
    for (int64_t unit = 0; unit < walk.units(); ++unit) walk.run(unit, h);
    losses.states.emplace_back(h.data<float>(), h.data<float>() + h.numel());
    double sum = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* x = logits.data<float>() + static_cast<int64_t>(r) * 48;
      double total = 0;
      for (int i = 0; i < 48; ++i) total += std::exp(double{x[i]});
      sum += std::log(total) - double{x[targets[r]]};
    }
    losses.ce.push_back(sum / static_cast<double>(rows.size()));
  }
  return losses;
}

struct TrainOptions {
  bool tape = true, records = true;
  int64_t step = 0;
  Tensor* weight = nullptr;  // whose gradient is wanted
  std::vector<float>* gradient = nullptr;
};

double training_loss(Rig& rig, const Rows& rows, const TrainOptions& options = {}) {
  Context& ctx = rig.ctx;
  Tape tape(Device::kCpu);
  std::unique_ptr<TapeScope> recording;
  const ArenaScope scope(ctx);
  const Batch batch = make_batch(ctx, rows);
  const auto state = rig.make_state(batch.sequences, {.training = true, .step = options.step});
  const auto n = static_cast<int64_t>(rows.size());
  const std::vector<float> weights(rows.size(), 1.0f / static_cast<float>(n));
  const Tensor targets = Tensor::from(ctx, next_tokens(rows), {n}), weight = Tensor::from(ctx, weights, {n});
  Tensor plain, gradient;
  if (options.weight) {
    plain = *options.weight;
    gradient = Tensor::owned(Device::kCpu, DType::kF32, plain.shape());
    *options.weight = parameter(plain, gradient);
  }
  if (options.tape) recording = std::make_unique<TapeScope>(ctx, tape);
  const RecordingScope heard(ctx, options.records);
  const OutputRows output = forward_to_output(ctx, rig.model, batch, FreshPass{}, *rig.policy, *state);
  const Tensor loss = rig.policy->loss(ctx, {rig.model, batch, output, {}, targets, weight, *state});
  float value = 0;
  copy_to_host(ctx, loss, std::span(&value, 1));
  if (options.weight) {
    tape.backward(ctx, loss);
    options.gradient->assign(gradient.data<float>(), gradient.data<float>() + gradient.numel());
    *options.weight = plain;
  }
  state->pass.units.clear();
  rig.policy->observe(ctx, *state, 0);
  tape.clear();
  return double{value};
}

// Rows kept at the attention of each layer.
std::vector<std::vector<uint8_t>> by_layer(const Seen& seen) {
  std::vector<std::vector<uint8_t>> layers;
  for (size_t unit = 0; unit < seen.kept.size(); unit += 2) {
    EXPECT_EQ(seen.kept[unit], seen.kept[unit + 1]);  // a row leaves whole blocks
    layers.push_back(seen.kept[unit]);
  }
  return layers;
}

int64_t count(const std::vector<uint8_t>& kept) {
  return std::count(kept.begin(), kept.end(), 1);
}

const char* const kCalmSoftmax = R"({"name": "calm", "threshold": 0.12})";
const char* const kCalmSimilarity = R"({"name": "calm", "confidence": "similarity", "threshold": 0.5})";

// After the first block, which everybody runs, the leavers are those the definition names; nobody comes back.
TEST(Calm, RowsLeaveWhenTheyAreSure) {
  const Rows rows = random_rows({25, 31});
  for (const bool similarity : {false, true}) {
    Rig rig(similarity ? kCalmSimilarity : kCalmSoftmax);
    const std::vector<std::vector<uint8_t>> layers = by_layer(rig.fresh(rows));
    EXPECT_EQ(count(layers[0]), 56);
    EXPECT_LT(count(layers[3]), 56);
    EXPECT_GT(count(layers[1]), 0);
    for (size_t layer = 1; layer < 4; ++layer) {
      for (size_t r = 0; r < rows.size(); ++r) EXPECT_LE(layers[layer][r], layers[layer - 1][r]);
    }
    const ArenaScope scope(rig.ctx);
    const Batch batch = make_batch(rig.ctx, rows);
    const DenseWalk walk(rig.ctx, rig.model, batch);
    Tensor h = walk.start();
    const Tensor before = walk.copy(h);
    walk.run(0, h);
    walk.run(1, h);
    const Tensor sure = similarity ? cosine_rows(rig.ctx, before, h)
                                   : softmax_gap(rig.ctx, output_logits(rig.ctx, rig.model, h));
    int64_t left = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      const float confidence = sure.data<float>()[r];
      EXPECT_EQ(layers[1][r], confidence < (similarity ? 0.5f : 0.12f) ? 1 : 0) << confidence;
      left += layers[1][r] ? 0 : 1;
    }
    EXPECT_GT(left, 0);
  }
}

TEST(Calm, TheThresholdRules) {
  const Rows rows = random_rows({25, 31});
  Rig never(R"({"name": "calm", "threshold": 1})"), at_once(R"({"name": "calm", "threshold": 0})"),
      some(kCalmSoftmax), alike(kCalmSimilarity), dense(R"({"name": "dense"})");
  EXPECT_EQ(never.fresh(rows).logits, dense.fresh(rows).logits);
  EXPECT_DOUBLE_EQ(skipped_share(at_once.fresh(rows)), 0.75);
  EXPECT_NE(some.fresh(rows).logits, dense.fresh(rows).logits);
  EXPECT_NE(some.fresh(rows).kept, alike.fresh(rows).kept);
  EXPECT_THROW(Rig(R"({"name": "calm", "threshold": 1.5})"), UserError);
}

// Deeper layers still hold the keys and values of a row that left, and token by token gives what one pass
// gives.
TEST(Calm, LeaversAreSeenAndPiecesChangeNothing) {
  const Rows rows = random_rows({40});
  for (const char* json : {kCalmSoftmax, kCalmSimilarity, R"({"name": "free", "threshold": 0.15})"}) {
    Rig rig(json);
    TinyRun whole(rig, 1), pieces(rig, 1);
    const Seen all = whole.pass(rows);
    EXPECT_GT(skipped_share(all), 0.02) << json;
    EXPECT_EQ(whole.cache().layer(3).lengths.data<int32_t>()[0], 40);
    std::vector<float> logits;
    for (size_t at = 0; at < rows.size();) {
      const size_t next = std::min(rows.size(), at < 20 ? at + 7 : at + 1);
      const Seen part = pieces.pass(
          Rows(rows.begin() + static_cast<int64_t>(at), rows.begin() + static_cast<int64_t>(next)));
      logits.insert(logits.end(), part.logits.begin(), part.logits.end());
      at = next;
    }
    EXPECT_EQ(logits, all.logits) << json;
  }
}

// At a calibrated budget every block has its own threshold; a lower one does not call anybody back.
TEST(Calm, LeaversStayAwayUnderAnyThresholds) {
  Rig rig(kCalmSoftmax);
  rig.thresholds = {0, 0, 0.88f, 0.88f, 0, 0, 0, 0};
  const std::vector<std::vector<uint8_t>> layers = by_layer(rig.fresh(random_rows({25, 31})));
  EXPECT_LT(count(layers[1]), 56);
  EXPECT_GT(count(layers[1]), 0);
  EXPECT_EQ(layers[2], layers[1]);
  EXPECT_EQ(layers[3], layers[1]);
}

// Of four blocks, two: rows leave after the second alone, the head is asked there alone, and its loss counts.
TEST(Calm, ExitsEveryFewBlocks) {
  const Rows rows = random_rows({25, 31});
  for (const char* confidence : {"softmax", "similarity"}) {
    const std::string threshold = confidence[1] == 'o' ? "0.12" : "0.5";
    Rig rig(R"({"name": "calm", "exit_every": 2, "confidence": ")" + std::string(confidence) +
            R"(", "threshold": )" + threshold + "}");
    const std::vector<std::vector<uint8_t>> layers = by_layer(rig.fresh(rows));
    EXPECT_EQ(count(layers[1]), 56);
    EXPECT_LT(count(layers[2]), 56) << confidence;
    EXPECT_GT(count(layers[2]), 0) << confidence;
    EXPECT_EQ(layers[3], layers[2]);
  }
  Rig asks(R"({"name": "calm", "exit_every": 2, "threshold": 1})");
  EXPECT_EQ(asks.fresh(random_rows({20})).work.policy_madds, 20u * 48u * 32u);
  Rig learns(R"({"name": "calm", "exit_every": 3})");
  const Rows few = random_rows({9, 14});
  const std::vector<double> ce = layer_losses(learns, few).ce;
  EXPECT_NEAR(training_loss(learns, few), (3 * ce[2] + 4 * ce[3]) / 7, 1e-3);
  EXPECT_THROW(Rig(R"({"name": "calm", "exit_every": 0})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "calm", "exit_every": 4})"), UserError);
}

// What the LM head costs on the way is the cost of deciding, not of the blocks.
TEST(Calm, AskingTheHeadIsCountedAsDeciding) {
  const Rows rows = random_rows({20});
  Rig rig(R"({"name": "calm", "threshold": 1})");
  EXPECT_EQ(rig.fresh(rows).work.policy_madds, 3u * 20u * 48u * 32u);
}

TEST(Calm, LossWeighsDeeperLayersMore) {
  const Rows rows = random_rows({9, 14});
  Rig rig(R"({"name": "calm"})");
  const std::vector<double> ce = layer_losses(rig, rows).ce;
  const double expected = (ce[0] + 2 * ce[1] + 3 * ce[2] + 4 * ce[3]) / 10;
  EXPECT_NEAR(training_loss(rig, rows), expected, 1e-4 * expected);
  EXPECT_NEAR(training_loss(rig, rows, {.tape = false}), expected, 1e-4 * expected);
  EXPECT_NEAR(training_loss(rig, rows, {.records = false}), expected, 1e-4 * expected);
}

TEST(Free, OneExit) {
  const Rows rows = random_rows({25, 31});
  Rig rig(R"({"name": "free", "threshold": 0.15, "exit_layer": 2})"),
      early(R"({"name": "free", "threshold": 0.15})"), alike(R"({"name": "free", "confidence": "similarity",
      "threshold": 0.8, "exit_layer": 2})");
  for (Rig* each : {&rig, &alike}) {
    const std::vector<std::vector<uint8_t>> layers = by_layer(each->fresh(rows));
    EXPECT_EQ(count(layers[1]), 56);
    EXPECT_LT(count(layers[2]), 56);
    EXPECT_GT(count(layers[2]), 0);
    EXPECT_EQ(layers[3], layers[2]);
  }
  EXPECT_LT(count(by_layer(early.fresh(rows))[1]), 56);  // three eighths of four layers: one
  EXPECT_NE(rig.fresh(rows).kept, alike.fresh(rows).kept);
  EXPECT_THROW(Rig(R"({"name": "free", "exit_layer": 4})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "free", "exit_layer": -1})"), UserError);
}

TEST(Free, LossAtBothDepthsAndToTheNearestState) {
  const Rows rows = random_rows({9, 14});
  Rig rig(R"({"name": "free", "exit_layer": 2, "state_weight": 0.5})"),
      plain(R"({"name": "free", "exit_layer": 2, "state_weight": 0})");
  const Losses losses = layer_losses(rig, rows);
  double nearest = INFINITY;
  for (const size_t deep : {2, 3}) {
    double sum = 0;
    for (size_t i = 0; i < losses.states[1].size(); ++i) {
      const double d = double{losses.states[1][i]} - double{losses.states[deep][i]};
      sum += d * d;
    }
    nearest = std::min(nearest, sum / static_cast<double>(losses.states[1].size()));
  }
  const double both = losses.ce[1] + losses.ce[3];
  EXPECT_NEAR(training_loss(plain, rows), both, 1e-4 * both);
  EXPECT_NEAR(training_loss(rig, rows), both + 0.5 * nearest, 1e-4 * (both + nearest));
}

TEST(LayerSkip, AFixedExitIsAShallowerModel) {
  const Rows rows = random_rows({25, 31});
  Rig rig(R"({"name": "layer_skip", "exit_layer": 3})"), full(R"({"name": "layer_skip"})"),
      dense(R"({"name": "dense"})");
  EXPECT_EQ(full.fresh(rows).logits, dense.fresh(rows).logits);
  dense.model = shallow(dense.model, 3);
  const Seen ours = rig.fresh(rows), theirs = dense.fresh(rows);
  EXPECT_EQ(ours.logits, theirs.logits);
  EXPECT_EQ(ours.work.madds, theirs.work.madds);
  EXPECT_THROW(Rig(R"({"name": "layer_skip", "exit_layer": 5})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "layer_skip", "dropout": 1.5})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "layer_skip", "loss_every": 0})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "layer_skip", "exit_loss_scale": -1})"), UserError);
}

// Rows drop out of blocks, more with depth: 0 at the first, the given rate at the last.
TEST(LayerSkip, DropoutRisesWithDepth) {
  Rig rig(R"({"name": "layer_skip", "dropout": 0.5})");
  const Rows rows = random_rows(std::vector<int>(40, 100));
  const Seen seen = rig.fresh(rows, {.training = true});
  const std::vector<std::vector<uint8_t>> layers = by_layer(seen);
  for (int layer = 0; layer < 4; ++layer) {
    const double expected = 1 - 0.5 * (std::exp2(layer / 3.0) - 1);
    EXPECT_NEAR(static_cast<double>(count(layers[static_cast<size_t>(layer)])) / 4000, expected, 0.03);
  }
  EXPECT_NE(rig.fresh(rows, {.training = true, .step = 1}).kept, seen.kept);
  EXPECT_EQ(skipped_share(rig.fresh(rows)), 0);
  Rig dense(R"({"name": "dense"})");
  EXPECT_LT(seen.work.madds, dense.fresh(rows).work.madds);  // really not computed
}

TEST(LayerSkip, LossOverTheLayers) {
  const Rows rows = random_rows({9, 14});
  Rig rig(R"({"name": "layer_skip", "dropout": 0, "exit_loss_scale": 0.5})"),
      turns(R"({"name": "layer_skip", "dropout": 0, "exit_loss_scale": 0.5, "loss_every": 2})"),
      last(R"({"name": "layer_skip", "dropout": 0, "exit_loss_scale": 0})");
  const std::vector<double> ce = layer_losses(rig, rows).ce;
  // e = scale · (0, 1, 3) and, of the last, 3 + scale · 3
  const double all = (0.5 * ce[1] + 1.5 * ce[2] + 4.5 * ce[3]) / 6.5;
  EXPECT_NEAR(training_loss(rig, rows), all, 1e-4 * all);
  EXPECT_NEAR(training_loss(last, rows), ce[3], 1e-4 * ce[3]);
  EXPECT_NEAR(training_loss(turns, rows), (1.5 * ce[2] + 4.5 * ce[3]) / 6, 1e-4 * all);
  EXPECT_NEAR(training_loss(turns, rows, {.step = 1}), (0.5 * ce[1] + 4.5 * ce[3]) / 5, 1e-4 * all);
}

// The deep states are a target: the distance pulls the shallow one and nothing behind the exit.
TEST(Free, TheDistanceTeachesTheShallowSideOnly) {
  const Rows rows = random_rows({7, 5});
  Rig with(R"({"name": "free", "exit_layer": 2, "state_weight": 1})"),
      without(R"({"name": "free", "exit_layer": 2, "state_weight": 0})");
  const auto gradient = [&](Rig& rig, size_t block) {
    std::vector<float> values;
    training_loss(rig, rows, {.weight = &rig.model.weights.blocks[block].ffn_norm, .gradient = &values});
    return values;
  };
  EXPECT_EQ(gradient(with, 2), gradient(without, 2));
  EXPECT_EQ(gradient(with, 3), gradient(without, 3));
  EXPECT_NE(gradient(with, 1), gradient(without, 1));
}

// The losses' gradients against differences, at weights that every exit and only early ones see.
TEST(EarlyExit, GradientsOfTheLosses) {
  const Rows rows = random_rows({7, 5});
  for (const char* json : {R"({"name": "calm"})", R"({"name": "layer_skip"})",
                           R"({"name": "free", "exit_layer": 2, "state_weight": 0})"}) {
    Rig rig(json);
    BlockWeights& first = rig.model.weights.blocks[0];
    for (Tensor* weight : {&rig.model.weights.final_norm, &first.ffn_norm, &first.attention_norm}) {
      std::vector<float> gradient;
      training_loss(rig, rows, {.weight = weight, .gradient = &gradient});
      for (const int64_t i : {0, 9, 31}) {
        float& value = weight->data<float>()[i];
        const float old = value;
        value = old + 0.02f;
        const double more = training_loss(rig, rows);
        value = old - 0.02f;
        const double less = training_loss(rig, rows);
        value = old;
        const double slope = (more - less) / 0.04;
        EXPECT_NEAR(double{gradient[static_cast<size_t>(i)]}, slope, 2e-3 + 0.03 * std::abs(slope)) << json;
      }
    }
  }
}

}  // namespace
}  // namespace fathom
