#include "skip/priced.h"

#include <gtest/gtest.h>

#include "skip/harm_order.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

// The share of the block multiply-adds that a pass ran, counted at that context.
double executed(const Seen& seen, const ModelConfig& config, SkippedKv rule, int64_t context) {
  double ran = 0, all = 0;
  for (size_t unit = 0; unit < seen.kept.size(); ++unit) {
    const auto index = static_cast<int64_t>(unit);
    for (const uint8_t kept : seen.kept[unit]) {
      const double madds = unit_madds(config, index, context);
      all += madds;
      ran += kept ? madds : madds - avoided_madds_at(config, index, rule, context);
    }
  }
  return ran / all;
}

// A training pass with everything kept for observe(), as the trainer makes it.
void train_part(Rig& rig, const Rows& rows, float share, int64_t part) {
  Tape tape(Device::kCpu);
  const ArenaScope scope(rig.ctx);
  const Batch batch = make_batch(rig.ctx, rows);
  const auto state = rig.make_state(batch.sequences, {.training = true, .share = share});
  {
    const TapeScope recording(rig.ctx, tape);
    forward(rig.ctx, rig.model, batch, FreshPass{}, *rig.policy, *state);
  }
  rig.policy->observe(rig.ctx, *state, part);
  tape.clear();
}

void train_step(Rig& rig, const Rows& rows, float share) {
  train_part(rig, rows, share, 0);
  after_step(rig);
}

TEST(Priced, CostsByHand) {
  const ModelConfig c = tiny_config();
  const double attention = 2 * 32 * 32 + 2 * 32 * 16 + 2 * 1024 * 32, ffn = 3 * 32 * 40;
  const double mean = (attention + ffn) / 2;
  EXPECT_DOUBLE_EQ(unit_cost(c, 1, SkippedKv::kProject, 1024), ffn / mean);
  EXPECT_DOUBLE_EQ(unit_cost(c, 2, SkippedKv::kHide, 1024), attention / mean);
  EXPECT_DOUBLE_EQ(unit_cost(c, 2, SkippedKv::kProject, 1024), (attention - 2 * 32 * 16) / mean);
}

// Before anything is learned a budget gives what the static harm order gives, in training and at inference.
TEST(Priced, StartsAsTheStaticHarmOrder) {
  for (const char* kv : {"project", "copy", "hide"}) {
    for (const int64_t context : {16, 400}) {  // units cost about the same, or attention far more
      const std::string rules = R"(, "protect": [3], "cost_context": )" + std::to_string(context);
      const std::string kept = std::string(R"(, "skipped_kv": ")") + kv + R"(", "train_skipped_kv": ")" + kv;
      Rig priced(R"({"name": "priced", "init": "harm_order")" + rules + kept + "\"}", Shaped::kLlama, 0.0f);
      Rig fixed(R"({"name": "harm_order", "counted_kv": ")" + std::string(kv) + "\"" + rules + "}");
      const Rows rows = random_rows({11, 7});
      for (const float share : {0.95f, 0.9f, 0.8f, 0.7f, 0.6f, 0.5f}) {
        const PassOptions options{.training = true, .share = share};
        const Seen ours = priced.fresh(rows, options), theirs = fixed.fresh(rows, options);
        EXPECT_EQ(ours.kept, theirs.kept) << share << " " << kv << " " << context;
        const SkippedKv rule = ours.skipped_kv.back();
        EXPECT_LE(executed(ours, priced.model.config, rule, context), share + 1e-6);
        const float price = price_for(priced.policy->controllers(), share);
        priced.thresholds = price_thresholds(priced.model.config, price, rule, context);
        EXPECT_EQ(priced.fresh(rows).kept, theirs.kept) << share << " " << kv << " " << context;
        EXPECT_GT(skipped_share(theirs), 0);
        priced.thresholds = {};
      }
    }
  }
}

// FFNs that do nothing go first, however little that saves: values are per cost.
TEST(Priced, CheapUnitsGoFirstWhereTheyAreHarmless) {
  Rig rig(R"({"name": "dense"})");
  for (BlockWeights& block : rig.model.weights.blocks) {
    for (int64_t i = 0; i < block.down.numel(); ++i) block.down.data<float>()[i] *= 1e-4f;
  }
  rig.policy =
      MethodPolicy::from_json(R"({"name": "priced", "init": "harm_order", "cost_context": 400})", "test");
  rig.policy->initialise(rig.model.config, 7);
  const ArenaScope scope(rig.ctx);
  const std::vector<Batch> batches{make_batch(rig.ctx, random_rows({12, 9}, 77))};
  rig.policy->prepare(rig.ctx, rig.model, batches);
  const Seen seen = rig.fresh(random_rows({11}), {.training = true, .share = 0.9f});
  for (size_t unit = 0; unit < 8; unit += 2) {
    EXPECT_EQ(seen.kept[unit], std::vector<uint8_t>(11, 1)) << unit;
    EXPECT_EQ(seen.kept[unit + 1], std::vector<uint8_t>(11, 0)) << unit;
  }
}

TEST(Priced, FullDepthWithoutABudget) {
  const Rows rows = random_rows({11, 7});
  Rig priced(R"({"name": "priced"})"), dense(R"({"name": "dense"})");
  EXPECT_EQ(priced.fresh(rows).logits, dense.fresh(rows).logits);
  EXPECT_EQ(priced.fresh(rows, {.training = true, .share = 1}).logits, dense.fresh(rows).logits);
}

// Rows differ; the price finds its place from nothing, whatever must run in any case.
TEST(Priced, TrackedPricesReachTheShare) {
  for (const char* extra : {"", R"(, "protect": [0])", R"(, "train_skipped_kv": "hide")"}) {
    Rig rig(std::string(R"({"name": "priced", "cost_context": 16, "price_decay": 0.8)") + extra + "}");
    for (const float share : {0.7f, 0.52f, 0.9f}) {
      for (uint64_t step = 0; step < 25; ++step) train_step(rig, random_rows({60, 50}, 50 + step), share);
      const Seen seen =
          rig.fresh(random_rows(std::vector<int>(20, 60), 9), {.training = true, .share = share});
      EXPECT_NEAR(executed(seen, rig.model.config, seen.skipped_kv.back(), 16), double{share}, 0.02) << extra;
      if (extra[0] && std::string(extra).find("protect") != std::string::npos) {
        EXPECT_EQ(std::count(seen.kept[0].begin(), seen.kept[0].end(), 1), std::ssize(seen.kept[0]));
        EXPECT_EQ(std::count(seen.kept[1].begin(), seen.kept[1].end(), 1), std::ssize(seen.kept[1]));
      }
    }
  }
}

std::vector<float> prices_of(Rig& rig) {
  std::vector<float> prices;
  for (const float* price : rig.policy->controllers()) prices.push_back(*price);
  return prices;
}

// Micro-batches of one step set the price together, and a step that was not taken leaves nothing behind.
TEST(Priced, ThePriceIsThatOfTheWholeStep) {
  const Rows first = random_rows({30}, 1), second = random_rows({20}, 2);
  Rows both = first;
  for (BatchRow row : second) {
    row.sequence = 1;
    both.push_back(row);
  }
  Rig whole(R"({"name": "priced"})"), parts(R"({"name": "priced"})"), alone(R"({"name": "priced"})");
  train_step(whole, both, 0.7f);
  train_part(parts, random_rows({25}, 3), 0.7f, 0);  // not finite, say
  train_part(parts, first, 0.7f, 0);
  train_part(parts, second, 0.7f, 1);
  after_step(parts);
  train_step(alone, second, 0.7f);
  EXPECT_EQ(prices_of(parts), prices_of(whole));
  EXPECT_NE(prices_of(alone), prices_of(whole));
}

// What adjust() takes out of gradients that are all 1: nothing where nobody may skip, and elsewhere the slope
// of the cost, as much as leaves a common shift of the biases without effect.
TEST(Priced, TheGradientHoldsTheBudget) {
  const Rows rows = random_rows({11, 7});
  const auto adjusted = [&](const char* extra) {
    Rig rig(std::string(R"({"name": "priced", "protect": [3], "cost_context": 16)") + extra + "}");
    train_part(rig, rows, 1.0f, 0);
    std::vector<std::vector<float>> gradients;
    for (const MethodParameter& each : rig.policy->parameters(rig.model.config))
      gradients.emplace_back(static_cast<size_t>(each.shape.numel()), 1.0f);
    adjust_gradients(rig, gradients);
    return gradients;
  };
  const std::vector<std::vector<float>> held = adjusted("");
  float biases = 0;
  for (size_t unit = 0; unit < 6; ++unit) biases += held[2 * unit + 1][0];
  EXPECT_NEAR(biases, 0, 1e-5);
  for (size_t i = 12; i < 16; ++i) EXPECT_EQ(held[i], std::vector<float>(held[i].size(), 1.0f));

  Rig rig(R"({"name": "priced", "protect": [3], "cost_context": 16})");
  const auto slope_of_cost = [&](size_t parameter, size_t at) {
    float& value = rig.policy->parameters(rig.model.config)[parameter].tensor->data<float>()[at];
    const float kept = value;
    double sums[2];
    for (const int side : {0, 1}) {
      value = kept + (side ? 1e-2f : -1e-2f);
      const Seen seen = rig.fresh(rows, {.training = true, .share = 1});
      sums[side] = 0;
      for (const float score : seen.scores[parameter / 2]) sums[side] += double{score};
    }
    value = kept;
    return (sums[1] - sums[0]) *
           unit_cost(rig.model.config, static_cast<int64_t>(parameter / 2), SkippedKv::kProject, 16);
  };
  const double scale = (1 - double{held[3][0]}) / slope_of_cost(3, 0);
  for (const auto& [parameter, at] : {std::pair{4, 0}, {4, 31}, {5, 0}, {10, 7}}) {
    EXPECT_NEAR(1 - double{held[static_cast<size_t>(parameter)][static_cast<size_t>(at)]},
                scale * slope_of_cost(static_cast<size_t>(parameter), static_cast<size_t>(at)), 2e-3)
        << parameter << " " << at;
  }
  for (const auto& each : adjusted(R"(, "hold_budget": false)"))
    EXPECT_EQ(each, std::vector<float>(each.size(), 1.0f));
}

TEST(Priced, PricesInterpolateAndFall) {
  std::vector<float> values(kPricePoints, -1.0f);
  std::vector<float*> prices;
  for (float& value : values) prices.push_back(&value);
  EXPECT_EQ(price_for(prices, 0.5f), 0.0f);  // nothing is known yet: everybody runs
  values[9] = 0.8f;                          // share 0.5
  values[13] = 0.4f;                         // share 0.7
  EXPECT_FLOAT_EQ(price_for(prices, 0.5f), 0.8f);
  EXPECT_NEAR(price_for(prices, 0.6f), 0.6f, 1e-6);
  EXPECT_NEAR(price_for(prices, 0.85f), 0.2f, 1e-6);  // towards 0 at full depth
  EXPECT_FLOAT_EQ(price_for(prices, 0.2f), 0.8f);
  EXPECT_EQ(price_for(prices, 1.0f), 0.0f);
}

std::vector<float> prices_after_two_steps(const std::string& extra) {
  Rig rig(R"({"name": "priced")" + extra + "}");
  train_step(rig, random_rows({30}, 1), 0.7f);
  train_step(rig, random_rows({30}, 2), 0.7f);
  return prices_of(rig);
}

TEST(Priced, EveryKeyMovesANumber) {
  const std::vector<float> prices = prices_after_two_steps("");
  EXPECT_NE(prices_after_two_steps(R"(, "price_decay": 0.9)"), prices);
  EXPECT_NE(prices_after_two_steps(R"(, "cost_context": 8)"), prices);
  EXPECT_THROW(Rig(R"({"name": "priced", "price_decay": 1})"), UserError);
  EXPECT_THROW(Rig(R"({"name": "priced", "cost_context": 0})"), UserError);
}

// The gradient of the bias of the first unit that every row skips.
float gradient_of_skipped(const std::string& extra) {
  Rig rig(R"({"name": "priced", "init": "harm_order", "cost_context": 16)" + extra + "}", Shaped::kLlama,
          0.0f);
  Context& ctx = rig.ctx;
  const Rows rows = random_rows({11, 7});
  const Seen seen = rig.fresh(rows, {.training = true, .share = 0.6f});
  size_t unit = 0;
  while (std::count(seen.kept[unit].begin(), seen.kept[unit].end(), 1) > 0) ++unit;
  Tensor& bias = *rig.policy->parameters(rig.model.config)[2 * unit + 1].tensor;
  Tensor gradient = Tensor::owned(Device::kCpu, DType::kF32, {1});
  bias = parameter(bias, gradient);
  Tape tape(Device::kCpu);
  const ArenaScope scope(ctx);
  const Batch batch = make_batch(ctx, rows);
  const auto state = rig.make_state(batch.sequences, {.training = true, .share = 0.6f});
  std::vector<int32_t> next;
  for (const BatchRow& row : rows) next.push_back((row.token + 1) % 48);
  const std::vector<float> weights(rows.size(), 1.0f / 18);
  const Tensor targets = Tensor::from(ctx, next, {18}), weight = Tensor::from(ctx, weights, {18});
  {
    const TapeScope recording(ctx, tape);
    const OutputRows output = forward_to_output(ctx, rig.model, batch, FreshPass{}, *rig.policy, *state);
    tape.backward(ctx, rig.policy->loss(ctx, {rig.model, batch, output, {}, targets, weight, *state}));
  }
  state->pass.units.clear();
  return gradient.data<float>()[0];
}

// Straight-through: a unit that everybody skips learns what it would have been worth, if it is computed.
TEST(Priced, SkippedUnitsLearn) {
  EXPECT_NE(gradient_of_skipped(""), 0.0f);
  EXPECT_EQ(gradient_of_skipped(R"(, "st_skipped": "drop")"), 0.0f);
}

TEST(Priced, TrainsRoutersOnlyUnlessToldOtherwise) {
  EXPECT_TRUE(MethodPolicy::from_json(R"({"name": "priced"})", "test")->options().frozen_backbone);
  EXPECT_FALSE(MethodPolicy::from_json(R"({"name": "priced", "frozen_backbone": false})", "test")
                   ->options()
                   .frozen_backbone);
}

}  // namespace
}  // namespace fathom
