#include "eval/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/batch_generate.h"
#include "eval/harness_golden_test.h"
#include "eval/plan.h"
#include "eval/scores_test.h"
#include "infer/plain_answer_test.h"
#include "infer/score.h"
#include "infer/story_model_test.h"
#include "infer/writer.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

// The model that the harness's goldens were made with.
struct GoldenModel {
  Context ctx{{.device = Device::kCpu, .threads = 1}};
  Model model = load_model(ctx, FATHOM_TEST_DATA "/models/smollm2");
  KvCache cache;
  DensePolicy policy;
  PolicyState state;
  Feeder feeder;
  RequestEncoder encoder;

  explicit GoldenModel(int64_t context, int64_t sequences = 3)
      : cache(ctx, model.config,
              {.sequences = sequences, .context = context, .k_type = DType::kF32, .v_type = DType::kF32}),
        feeder(ctx, model, cache, policy, state),
        encoder(*model.tokenizer, context) {}
};

TEST(Evaluate, LogLikelihoodsAreTheHarnesss) {
  const auto golden = harness_goldens()["model"];
  GoldenModel tiny(golden["context"]);
  std::vector<ItemRequests> items;
  for (const auto& pair : golden["pairs"])
    items.push_back(
        {tiny.encoder.pair(pair["context"].get<std::string>(), pair["continuation"].get<std::string>())});
  const auto scores = score_items(tiny.feeder, items, in_order(items.size()), {});
  int greedy = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_NEAR(scores[i][0].logprob, golden["pairs"][i]["logprob"], 1e-4) << golden["pairs"][i];
    EXPECT_EQ(scores[i][0].greedy, golden["pairs"][i]["greedy"]);
    greedy += scores[i][0].greedy;
  }
  EXPECT_EQ(greedy, 1);
}

TEST(Evaluate, RollingLogLikelihoodsAreTheHarnesss) {
  const auto golden = harness_goldens()["model"];
  GoldenModel tiny(golden["context"]);
  for (const auto& text : golden["rolling"]) {
    const std::vector<ItemRequests> items{tiny.encoder.rolling(text["text"].get<std::string>())};
    double sum = 0;
    for (const double logprob : logprobs_of(score_items(tiny.feeder, items, in_order(1), {}))) sum += logprob;
    EXPECT_NEAR(sum, text["logprob"], 1e-5 * std::abs(sum)) << text["text"];
  }
}

TEST(Evaluate, GreedyTextsAreTheHarnesss) {
  const auto golden = harness_goldens()["model"];
  GoldenModel tiny(golden["context"], 2);
  for (const auto& one : golden["generated"]) {
    const GenerationRules rules{one["until"].get<std::vector<std::string>>(), golden["max_tokens"]};
    const std::vector<ItemRequests> prompts{
        {tiny.encoder.prompt(one["prompt"].get<std::string>(), rules.max_tokens)}};
    EXPECT_EQ(generate_items(tiny.feeder, prompts, in_order(1), rules, {})[0], one["text"].get<std::string>())
        << one["prompt"];
  }
}

// What few-shot examples are: many tokens that every item begins with.
const char* const kExamples =
    "Tom went home. He was happy to see his mom and his dog. They ate a big cake and went to bed.\n\n";

Task story_task(TaskKind kind, const std::string& examples = "") {
  Task task;
  task.spec.kind = kind;
  const std::vector<std::string> starts{"Once upon a time, there was a", "Tom had a big", "The cat sat on",
                                        "Once upon a time, there", "Lily went to the park. She saw a big"};
  for (size_t i = 0; i < starts.size(); ++i) {
    EvalItem item;
    item.id = std::to_string(i);
    for (const char* end : {" little girl.", " dog", " little boy named Tim", " x"})
      item.options.push_back({examples + starts[i], end});
    item.characters = {12, 3, 20, 1};
    item.gold = static_cast<int64_t>(i % 4);
    item.prompt = examples + starts[i];
    task.items.push_back(item);
  }
  task.spec.generation = {{"."}, 24, AnswerRule::kNone};
  return task;
}

// A task that runs in any number of sequences and passes of any size gives what every request gives alone.
class Examples : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Evaluate, Examples, testing::Values("", kExamples));

TEST_P(Examples, ScoresAreThoseOfEachRequestAlone) {
  const Task task = story_task(TaskKind::kChoice, GetParam());
  std::vector<double> alone;
  StoryModel one;
  const RequestEncoder encoder(*one.model.tokenizer, 512);
  const EncodedTask encoded = encode_task(task, encoder);
  for (const ItemRequests& item : encoded.items) {
    for (const TokenRequest& request : item) {
      const ScoreResult result = score(one.feeder, request.tokens);
      double sum = 0;
      for (size_t i = request.tokens.size() - static_cast<size_t>(request.scored); i < request.tokens.size();
           ++i)
        sum += static_cast<double>(result.logprobs[i]);
      alone.push_back(sum);
    }
  }
  for (const int64_t sequences : {1, 2, 8}) {
    for (const int64_t rows : {1, 7, 512}) {
      StoryModel story(128, sequences);
      BatchOptions options;
      options.rows = rows;
      int64_t done = 0;
      options.on_progress = [&](int64_t items) { done += items; };
      const TaskResult result = evaluate(story.feeder, task, encoded, options);
      EXPECT_EQ(done, 5);
      std::vector<double> batched;
      for (const ItemResult& item : result.items) {
        for (const TextScore& each : item.scores) batched.push_back(each.logprob);
      }
      EXPECT_EQ(batched, alone) << sequences << " sequences, passes of " << rows;
    }
  }
}

// Every token of the vocabulary after one context: greedy decoding writes the likeliest, and only that.
TEST(Evaluate, OneTokenIsGreedy) {
  StoryModel story(64, 1);
  const std::vector<int32_t> context = story.encode("Once upon a time, there was a");
  std::vector<ItemRequests> items(1);
  for (int32_t token = 0; token < story.model.config.vocab; ++token) {
    items[0].push_back({context, 1, 0});
    items[0].back().tokens.push_back(token);
  }
  const std::vector<TextScore> scores = score_items(story.feeder, items, in_order(1), {})[0];
  const auto less = [](const TextScore& a, const TextScore& b) { return a.logprob < b.logprob; };
  const auto best = std::max_element(scores.begin(), scores.end(), less);
  for (auto score = scores.begin(); score != scores.end(); ++score) EXPECT_EQ(score->greedy, score == best);
}

TEST(Evaluate, SharedTokensAreComputedOnce) {
  const Task task = story_task(TaskKind::kChoice);
  StoryModel story(128, 1);
  const EncodedTask encoded = encode_task(task, RequestEncoder(*story.model.tokenizer, 512));
  // One sequence: each item's tree of tokens, less what it begins with in common with the item before it.
  const uint64_t before = story.feeder.work().unit_rows;
  const std::vector<ItemRequests> first{encoded.items[0]};
  score_items(story.feeder, first, in_order(1), {});
  const auto rows = (story.feeder.work().unit_rows - before) / (2 * 5);  // 5 layers, 2 units
  size_t longest = 0, all = 0;
  for (const TokenRequest& request : encoded.items[0]) {
    longest = std::max(longest, request.tokens.size() - 1);
    all += request.tokens.size() - 1;
  }
  size_t tree = encoded.items[0][0].tokens.size() - static_cast<size_t>(encoded.items[0][0].scored);
  for (const TokenRequest& request : encoded.items[0]) tree += static_cast<size_t>(request.scored) - 1;
  EXPECT_GE(rows, longest);
  EXPECT_LE(rows, tree);  // the context once, and each choice's tokens but the last
  EXPECT_LT(tree, all);
  const uint64_t again = story.feeder.work().unit_rows;
  score_items(story.feeder, first, in_order(1), {});
  EXPECT_EQ((story.feeder.work().unit_rows - again) / 10, rows);  // a new call knows nothing of the last
}

// In several sequences that begin together, too: one is fed the examples, and the others become its forks.
TEST(Evaluate, ExamplesAreComputedOnce) {
  for (const TaskKind kind : {TaskKind::kChoice, TaskKind::kGenerate}) {
    const Task task = story_task(kind, kExamples);
    StoryModel story(256, 5);
    const EncodedTask encoded = encode_task(task, RequestEncoder(*story.model.tokenizer, 512));
    const std::vector<int32_t>&first = encoded.items[0][0].tokens, &second = encoded.items[1][0].tokens;
    const int64_t examples = common_prefix(first, second);
    ASSERT_GT(examples, 40);
    int64_t own = 0;  // rows after the examples: the item's, then each choice's but the last, or the answer's
    for (const ItemRequests& item : encoded.items) {
      own += static_cast<int64_t>(item[0].tokens.size()) - item[0].scored - examples;
      for (const TokenRequest& request : item)
        own += kind == TaskKind::kChoice ? request.scored - 1 : task.spec.generation.max_tokens;
    }
    evaluate(story.feeder, task, encoded, {});
    EXPECT_LE(static_cast<int64_t>(story.feeder.work().unit_rows) / 10, examples + own);
  }
}

TEST_P(Examples, GeneratesWhatIsGeneratedAlone) {
  const Task task = story_task(TaskKind::kGenerate, GetParam());
  StoryModel one;
  const EncodedTask encoded = encode_task(task, RequestEncoder(*one.model.tokenizer, 512));
  std::vector<std::string> alone;
  for (const ItemRequests& item : encoded.items) {
    AnswerOptions options;
    options.sampler.temperature = 0;
    options.max_tokens = 24;
    options.stops = {"."};
    options.end_ids = end_token_ids(one.model);
    const PlainAnswer result = PlainWriter(one.feeder, options, item.front().tokens).run();
    alone.emplace_back(before_stops(one.model.tokenizer->decode(result.ids), options.stops));
    one.feeder.truncate(0, 0);
  }
  for (const int64_t sequences : {1, 3}) {
    for (const int64_t rows : {2, 512}) {
      StoryModel story(128, sequences);
      BatchOptions options;
      options.rows = rows;
      const TaskResult result = evaluate(story.feeder, task, encoded, options);
      for (size_t i = 0; i < alone.size(); ++i) EXPECT_EQ(result.items[i].text, alone[i]);
    }
  }
}

// A tokenizer one of whose words is a chat model's end of a turn.
class WithEndOfTurn : public Tokenizer {
 public:
  WithEndOfTurn(std::shared_ptr<const Tokenizer> inner, int32_t end) : inner_(std::move(inner)), end_(end) {}
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options) const override {
    return inner_->encode(text, options);
  }
  std::string piece(int32_t id, bool show) const override { return inner_->piece(id, show); }
  std::string decode(const std::vector<int32_t>& ids, bool show) const override {
    return inner_->decode(ids, show);
  }
  int32_t vocab_size() const override { return inner_->vocab_size(); }
  int32_t id_of(std::string_view token) const override {
    return token == "<|im_end|>" ? end_ : inner_->id_of(token);
  }
  std::string token(int32_t id) const override { return id == end_ ? "<|im_end|>" : inner_->token(id); }
  bool is_special(int32_t id) const override { return id == end_ || inner_->is_special(id); }
  int32_t bos() const override { return inner_->bos(); }
  int32_t eos() const override { return inner_->eos(); }
  bool adds_bos() const override { return inner_->adds_bos(); }
  bool adds_eos() const override { return inner_->adds_eos(); }
  std::string kind() const override { return inner_->kind(); }

 private:
  std::shared_ptr<const Tokenizer> inner_;
  int32_t end_;
};

TEST(Evaluate, AnswersEndWhereGeneratedOnesDo) {
  StoryModel story;
  const std::vector<ItemRequests> prompts{
      {RequestEncoder(*story.model.tokenizer, 512).prompt("Once upon a time, there was a", 12)}};
  AnswerOptions options;
  options.sampler.temperature = 0;
  options.max_tokens = 12;
  const std::span<const int32_t> prompt = prompts[0].front().tokens;
  const std::vector<int32_t> words = PlainWriter(story.feeder, options, prompt).run().ids;
  const auto last = std::find_if(words.begin() + 1, words.end(),
                                 [&](int32_t id) { return std::count(words.begin(), words.end(), id) == 1; });
  ASSERT_NE(last, words.end());
  story.model.tokenizer = std::make_shared<WithEndOfTurn>(story.model.tokenizer, *last);
  options.end_ids = end_token_ids(story.model);
  const PlainAnswer alone = PlainWriter(story.feeder, options, prompt).run();
  EXPECT_EQ(alone.ids, std::vector<int32_t>(words.begin(), last));
  EXPECT_EQ(generate_items(story.feeder, prompts, in_order(1), {{}, 12, AnswerRule::kNone}, {})[0],
            story.model.tokenizer->decode(alone.ids));
}

TEST(Evaluate, PredictsTheLikeliest) {
  Task task = story_task(TaskKind::kChoice);
  StoryModel story(128, 4);
  const EncodedTask encoded = encode_task(task, RequestEncoder(*story.model.tokenizer, 512));
  for (EvalItem& item : task.items) item.gold = 0;
  const TaskResult result = evaluate(story.feeder, task, encoded, {});
  double right = 0, right_norm = 0, right_token = 0;
  bool differ = false;  // a prediction by token from that by the sum
  for (size_t i = 0; i < task.items.size(); ++i) {
    const ItemResult& item = result.items[i];
    for (size_t o = 0; o < 4; ++o) {
      const auto best = static_cast<size_t>(item.predicted), norm = static_cast<size_t>(item.predicted_norm);
      const auto by_token = static_cast<size_t>(item.predicted_token);
      EXPECT_GE(item.scores[best].logprob, item.scores[o].logprob);
      EXPECT_GE(item.scores[norm].logprob / static_cast<double>(task.items[i].characters[norm]),
                item.scores[o].logprob / static_cast<double>(task.items[i].characters[o]));
      EXPECT_GE(item.scores[by_token].logprob / static_cast<double>(encoded.items[i][by_token].scored),
                item.scores[o].logprob / static_cast<double>(encoded.items[i][o].scored));
    }
    right += item.predicted == 0;
    right_norm += item.predicted_norm == 0;
    right_token += item.predicted_token == 0;
    differ = differ || item.predicted_token != item.predicted;
  }
  EXPECT_TRUE(differ);
  ASSERT_EQ(result.metrics.size(), 3u);
  EXPECT_EQ(result.metrics[0].name, "acc");
  EXPECT_DOUBLE_EQ(result.metrics[0].value, right / 5);
  EXPECT_DOUBLE_EQ(result.metrics[1].value, right_norm / 5);
  EXPECT_EQ(result.metrics[2].name, "acc_token");
  EXPECT_DOUBLE_EQ(result.metrics[2].value, right_token / 5);
}

TEST(Evaluate, WrittenAnswersOfGroupsArePooled) {
  Task task = story_task(TaskKind::kGenerate);
  const std::vector<double> right{1, 1, 1, 0, 0};
  const std::vector<std::string> groups{"a", "a", "b", "b", "b"};
  std::vector<ItemResult> results(5);
  for (size_t i = 0; i < 5; ++i) {
    task.items[i].group = groups[i];
    results[i].judgements = {{"exact_match", "x", right[i]}};
  }
  const Metric made = metrics_of(task, {}, results, in_order(5)).at(0);
  EXPECT_DOUBLE_EQ(made.value, 0.6);
  EXPECT_DOUBLE_EQ(made.error, grouped_mean_metric("exact_match", right, groups).error);
  EXPECT_NE(made.error, mean_metric("exact_match", right).error);
}

// SQuAD's: the log-likelihood of having no answer beside the answer that is written.
TEST(Evaluate, NoAnswerIsScoredBesideTheAnswer) {
  Task task = story_task(TaskKind::kGenerate, kExamples);
  task.spec.generation.answer = AnswerRule::kSquad;
  StoryModel story(256, 3);
  const RequestEncoder encoder(*story.model.tokenizer, 512);
  const TaskResult plain = evaluate(story.feeder, task, encode_task(task, encoder), {});
  task.spec.generation.no_answer = " nobody";
  int64_t done = 0;
  BatchOptions options;
  options.on_progress = [&](int64_t items) { done += items; };
  const EncodedTask encoded = encode_task(task, encoder);
  const TaskResult result = evaluate(story.feeder, task, encoded, options);
  EXPECT_EQ(done, 5);  // each item once
  for (size_t i = 0; i < task.items.size(); ++i) {
    EXPECT_EQ(result.items[i].text, plain.items[i].text);
    const std::vector<ItemRequests> alone{{encoder.pair(task.items[i].prompt, " nobody")}};
    EXPECT_EQ(logprobs_of(score_items(story.feeder, alone, in_order(1), {})),
              (std::vector<double>{result.items[i].scores.at(0).logprob}));
  }
  EXPECT_EQ(result.metrics[0].name, "exact");
  EXPECT_EQ(result.metrics.back().name, "best_f1");
  // Rows for the longest prompt and its answer, not for an answer after what is only scored.
  EXPECT_EQ(encoded.longest, encode_task(story_task(TaskKind::kGenerate, kExamples), encoder).longest);
}

TEST(Evaluate, PerplexitiesComeFromTheSameSum) {
  Task task;
  task.spec.kind = TaskKind::kRolling;
  task.items.resize(2);
  task.items[0].text = "Once upon a time, there was a girl.";
  task.items[1].text = "The dog ran é.";
  StoryModel story(16, 2);
  const EncodedTask encoded = encode_task(task, RequestEncoder(*story.model.tokenizer, 16));
  const TaskResult result = evaluate(story.feeder, task, encoded, {});
  double logprob = 0, tokens = 0;
  for (const ItemResult& item : result.items) {
    for (const TextScore& window : item.scores) logprob += window.logprob;
  }
  for (const EvalItem& item : task.items) tokens += static_cast<double>(story.encode(item.text).size());
  EXPECT_NEAR(result.metrics[0].value, std::exp(-logprob / tokens), 1e-9);
  EXPECT_NEAR(result.metrics[1].value, std::exp(-logprob / 12), 1e-9 * result.metrics[1].value);
  EXPECT_NEAR(result.metrics[2].value, std::exp(-logprob / 50), 1e-9);
  EXPECT_NEAR(result.metrics[3].value, -logprob / 50 / std::log(2.0), 1e-9);
}

TEST(Evaluate, StopsWhenCancelled) {
  const Task task = story_task(TaskKind::kChoice);
  StoryModel story(128, 1);
  const EncodedTask encoded = encode_task(task, RequestEncoder(*story.model.tokenizer, 512));
  std::atomic<bool> cancel{false};
  BatchOptions options;
  options.cancel = &cancel;
  options.on_progress = [&](int64_t) { cancel = true; };
  EXPECT_TRUE(evaluate(story.feeder, task, encoded, options).cancelled);
}

TEST(Evaluate, WhatDoesNotFitIsNamed) {
  Task task = story_task(TaskKind::kChoice);
  task.spec.name = "mine";
  StoryModel story;
  try {
    encode_task(task, RequestEncoder(*story.model.tokenizer, 4));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("mine, item 0: ' little girl.' has ", 0), 0u) << error.what();
  }
  task.items.resize(1);
  task.items[0].options.resize(2);
  EXPECT_EQ(encode_task(task, RequestEncoder(*story.model.tokenizer, 10)).cut, 1);
  EXPECT_EQ(encode_task(task, RequestEncoder(*story.model.tokenizer, 100)).cut, 0);
}

}  // namespace
}  // namespace fathom
