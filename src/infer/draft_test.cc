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
        for (const DraftLength& length :
             {DraftLength::fixed(4), DraftLength::adaptive(draft_cost(model, rule, 0.6))}) {
          const Speculation speculation{rule, length};
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
