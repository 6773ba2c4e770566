#include "infer/draft.h"

#include <gtest/gtest.h>

#include "infer/plain_answer_test.h"
#include "infer/story_model_test.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

std::vector<int64_t> dropped_units(const DraftRule& rule) {
  std::vector<int64_t> units;
  for (size_t unit = 0; unit < rule.dropped.size(); ++unit) {
    if (rule.dropped[unit]) units.push_back(static_cast<int64_t>(unit));
  }
  return units;
}

TEST(Draft, AnExitLeavesTheFirstBlocks) {
  ModelConfig config;
  config.layers = 4;
  EXPECT_EQ(dropped_units(exit_draft(config, 0.75)), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(dropped_units(exit_draft(config, 0.01)), (std::vector<int64_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(dropped_units(exit_draft(config, 0.99)), std::vector<int64_t>{});
}

TEST(Draft, TheHarmOrderLeavesTheBudget) {
  Context ctx({.device = Device::kCpu, .threads = 1});
  const Model model = load_story_model(ctx);
  const std::vector<int32_t> order = measure_harm_order(ctx, model);
  const auto draft = [&](double budget) { return harm_order_draft(model.config, order, budget); };
  const std::vector<int64_t> few = dropped_units(draft(0.8)), many = dropped_units(draft(0.4));
  EXPECT_FALSE(few.empty());
  EXPECT_GT(many.size(), few.size());
  EXPECT_LT(many.size(), 10u);
  for (const int64_t unit : few) EXPECT_NE(std::find(many.begin(), many.end(), unit), many.end());
  const auto cost = [&](const DraftRule& rule, double budget) {
    return draft_cost(model, rule, budget).draft;
  };
  EXPECT_EQ(cost({}, 0.5), 1);
  EXPECT_LT(cost(draft(0.4), 0.4), cost(draft(0.8), 0.8));
  const DraftRule thresholds{{}, std::vector<float>(10, 0.5f)};
  EXPECT_GT(cost(thresholds, 0.5), 0.5);  // the output matrix is read all the same
  EXPECT_LT(cost(thresholds, 0.5), 0.8);
  EXPECT_LT(draft_cost(model, thresholds, 0.5, 128).draft, cost(thresholds, 0.5));
  const std::atomic<bool> stop = true;
  EXPECT_THROW(measure_harm_order(ctx, model, &stop), PrepareCancelled);
}

// Static: by bytes and multiply-adds. Weights of fewer bytes leave less to hide further rows behind.
TEST(Draft, RowsCostWhatTheirWeightsLeave) {
  Context ctx({.device = Device::kCpu, .threads = 1});
  const DraftCost f32 = pass_cost(load_story_model(ctx)), q8 = pass_cost(load_story_model(ctx, DType::kQ8_0)),
                  q4 = pass_cost(load_story_model(ctx, DType::kQ4_0));
  for (const DraftCost& cost : {f32, q8, q4}) {
    EXPECT_EQ(cost.pass(1), 1);
    for (int64_t rows = 1; rows < 17; ++rows) EXPECT_LT(cost.pass(rows), cost.pass(rows + 1));
    EXPECT_LT(cost.pass(4), 4);
  }
  EXPECT_GT(q4.pass(4), q8.pass(4));
  EXPECT_NEAR(DraftCost{}.pass(2), 1.13, 0.05) << "docs/benchmarks.md";
  EXPECT_NEAR(DraftCost{}.pass(4), 1.50, 0.05);
  EXPECT_NEAR(DraftCost{}.pass(8), 2.60, 0.25);
}

// A part of the output matrix is read, and counted.
TEST(Draft, APartOfTheVocabularyIsRead) {
  Context ctx({.device = Device::kCpu, .threads = 1});
  for (const std::optional<DType> type : {std::optional<DType>(), std::optional(DType::kQ8_0)}) {
    const Model model = load_story_model(ctx, type);
    const DensePolicy dense;
    const std::unique_ptr<PolicyState> state = dense.make_state(ctx, model.config, 1);
    KvCache cache(ctx, model.config, {.sequences = 1, .context = 64});
    Feeder feeder(ctx, model, cache, dense, *state);
    const std::vector<int32_t> ids = model.tokenizer->encode("Once upon a time");
    std::vector<float> all, part;
    const auto run = [&](int64_t vocab, std::vector<float>& logits) {
      const ArenaScope scope(ctx);
      feeder.truncate(0, 0);
      const Work before = feeder.work();
      const Tensor out = feeder.feed({.sequence = 0, .tokens = ids, .tentative = true, .vocab = vocab});
      logits.resize(static_cast<size_t>(out.numel()));
      copy_to_host(ctx, out, logits);
      return feeder.work() - before;
    };
    const Work whole = run(0, all), less = run(128, part);
    ASSERT_EQ(part.size(), 128u);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin()));
    const auto left_out = static_cast<uint64_t>(model.config.vocab - 128);
    EXPECT_EQ(whole.madds - less.madds, left_out * static_cast<uint64_t>(model.config.width));
    EXPECT_EQ(whole.weight_bytes - less.weight_bytes,
              left_out * static_cast<uint64_t>(row_bytes(model.weights.output.dtype(), model.config.width)));
    run(model.config.vocab, part);
    EXPECT_EQ(part, all);
  }
}

// A trained model, its weights as they are and quantised.
TEST(Draft, StoriesAreToldTheSame) {
  Context ctx({.device = Device::kCpu, .threads = 1});
  for (const std::optional<DType> type :
       {std::optional<DType>(), std::optional(DType::kQ8_0), std::optional(DType::kQ4_0)}) {
    const Model model = load_story_model(ctx, type);
    const std::vector<int32_t> order = measure_harm_order(ctx, model);
    for (const DraftRule& rule :
         {harm_order_draft(model.config, order, 0.7), exit_draft(model.config, 0.6)}) {
      const DensePolicy dense;
      const SpeculativePolicy policy(dense);
      const std::unique_ptr<PolicyState> state = policy.make_state(ctx, model.config, 1);
      KvCache cache(ctx, model.config, {.sequences = 1, .context = 64});
      Feeder feeder(ctx, model, cache, policy, *state);
      int64_t accepted = 0;
      for (const char* prompt : {"Once upon a time", "The dog ran to", "Lily was sad because", "One day, Tom",
                                 "\"I want to play,\" said"}) {
        AnswerOptions options;
        options.sampler.temperature = 0;
        options.max_tokens = 25;
        const std::vector<int32_t> ids = model.tokenizer->encode(prompt);
        const PlainAnswer plain = PlainWriter(feeder, options, ids).run();
        for (const Speculation& speculation :
             {Speculation{rule, DraftLength::fixed(4)},
              Speculation{rule, DraftLength::adaptive(draft_cost(model, rule, 0.6))},
              Speculation{rule, DraftLength::fixed(3), 100}, Speculation{{}, LookupLength::fixed(3)},
              Speculation{{}, LookupLength::adaptive(pass_cost(model))}}) {
          const PlainAnswer result = PlainWriter(feeder, options, ids, &speculation).run();
          EXPECT_EQ(result.ids, plain.ids) << prompt;
          EXPECT_EQ(result.text, plain.text);
          accepted += result.speculation.accepted;
        }
      }
      EXPECT_GT(accepted, 10);
    }
  }
}

}  // namespace
}  // namespace fathom
