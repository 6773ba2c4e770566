// SmolLM2-135M-Instruct (Q4_1) against transformers' fp32 run on the same weights: tests/data/smollm2. The
// file is fetched by tools/fetch_smollm2.sh and named by FATHOM_SMOLLM2; without it these tests are skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "infer/draft.h"
#include "infer/engine.h"
#include "infer/generate.h"
#include "infer/plain_answer_test.h"
#include "infer/score.h"
#include "model/load.h"
#include "program.h"
#include "skip/adapter.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

Json read_json(const char* name) {
  return Json::parse(read_text_file(std::string(FATHOM_TEST_DATA) + "/smollm2/" + name));
}

class SmolLM2 : public testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("FATHOM_SMOLLM2");
    if (!path || !*path)
      GTEST_SKIP() << "skipped: FATHOM_SMOLLM2 does not name the model (tools/fetch_smollm2.sh fetches it)";
    path_ = path;
  }

  // A model, its cache and what feeds it.
  struct Loaded {
    Loaded(const std::string& path, std::optional<DType> dtype, DType cache_type, int threads = 2)
        : ctx({.threads = threads}),
          model(load_model(ctx, path, {.dtype = dtype})),
          cache(ctx, model.config,
                {.sequences = 1, .context = 1200, .k_type = cache_type, .v_type = cache_type}),
          feeder(ctx, model, cache, policy, state) {}
    Context ctx;
    Model model;
    KvCache cache;
    DensePolicy policy;
    PolicyState state;
    Feeder feeder;
  };
  std::string path_;
};

TEST_F(SmolLM2, F32LogProbabilitiesMatchTransformers) {
  Loaded engine(path_, DType::kF32, DType::kF32);
  const Json golden = read_json("score.json");
  const auto ids = golden.at("ids").get<std::vector<int32_t>>();
  const ScoreResult result = score(engine.feeder, ids);
  ASSERT_GE(ids.size(), 1000u);
  double worst = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    const double difference = std::abs(result.logprobs[i] - golden.at("logprobs")[i].get<double>());
    worst = difference <= worst ? worst : difference;
  }
  EXPECT_LE(worst, 2e-3);
  RecordProperty("largest_difference", std::to_string(worst));
}

TEST_F(SmolLM2, F32GreedyTextMatchesTransformers) {
  Loaded engine(path_, DType::kF32, DType::kF32);
  for (const Json& prompt : read_json("greedy.json")) {
    Generator generator(engine.feeder);
    GenerateOptions options;
    options.sampler.temperature = 0;
    options.ignore_eos = true;
    const auto expected = prompt.at("ids").get<std::vector<int32_t>>();
    options.max_tokens = static_cast<int64_t>(expected.size());
    EXPECT_EQ(generator.run(prompt.at("prompt_ids").get<std::vector<int32_t>>(), options).ids, expected);
  }
}

TEST_F(SmolLM2, Int8KernelsKeepTheLikelihood) {
  Loaded engine(path_, std::nullopt, DType::kF16);
  const Json golden = read_json("score.json");
  const auto ids = golden.at("ids").get<std::vector<int32_t>>();
  double mean = 0;
  for (size_t i = 1; i < ids.size(); ++i)
    mean -= golden.at("logprobs")[i].get<double>() / static_cast<double>(ids.size() - 1);
  const double ours = score(engine.feeder, ids).mean_nll();
  EXPECT_NEAR(ours, mean, 0.01);
  RecordProperty("difference", std::to_string(ours - mean));
}

TEST_F(SmolLM2, ChunksAndThreadsChangeNoBit) {
  const auto all = read_json("score.json").at("ids").get<std::vector<int32_t>>();
  const std::vector<int32_t> ids(all.begin(), all.begin() + 160);
  for (std::optional<DType> dtype :
       {std::optional<DType>(), std::optional(DType::kQ8_0), std::optional(DType::kQ4_0)}) {
    Loaded one(path_, dtype, DType::kF16, 1), two(path_, dtype, DType::kF16, 2);
    const std::vector<float> whole = score(one.feeder, ids).logprobs;
    EXPECT_EQ(score(two.feeder, ids).logprobs, whole);
    EXPECT_EQ(score(two.feeder, ids, {.chunk = 1}).logprobs, whole);
    EXPECT_EQ(score(two.feeder, ids, {.chunk = 37}).logprobs, whole);
  }
}

TEST_F(SmolLM2, TokenizerAgreesWithTheGoldens) {
  Loaded engine(path_, std::nullopt, DType::kF16);
  for (const Json& prompt : read_json("greedy.json")) {
    EXPECT_EQ(engine.model.tokenizer->encode(prompt.at("prompt").get<std::string>(), {.add_special = false}),
              prompt.at("prompt_ids").get<std::vector<int32_t>>());
  }
}

// Prompts are windows of the scored text; FATHOM_SPECULATION_PROMPTS says how many (three, to be quick).
TEST_F(SmolLM2, SpeculationGivesTheSameTokens) {
  Loaded engine(path_, std::nullopt, DType::kF16);
  const char* asked = std::getenv("FATHOM_SPECULATION_PROMPTS");
  const int64_t prompts = asked ? std::atoll(asked) : 3;
  const auto ids = read_json("score.json").at("ids").get<std::vector<int32_t>>();
  const DraftRule exits = exit_draft(engine.model.config, 0.8),
                  drops = harm_order_draft(engine.model.config, measure_harm_order(engine.ctx, engine.model),
                                           0.8);
  SpeculationCounts counts;
  for (int64_t i = 0; i < prompts; ++i) {
    const DraftRule& rule = i % 2 ? exits : drops;
    const SpeculativePolicy policy(engine.policy);
    const std::unique_ptr<PolicyState> state = policy.make_state(engine.ctx, engine.model.config, 1);
    Feeder feeder(engine.ctx, engine.model, engine.cache, policy, *state);
    const auto begin = ids.begin() + i * 5 % (std::ssize(ids) - 40);
    const std::vector<int32_t> prompt(begin, begin + 8 + i % 32);
    AnswerOptions options;
    options.sampler.temperature = 0;
    options.max_tokens = 24;
    const std::vector<int32_t> plain = PlainWriter(feeder, options, prompt).run().ids;
    const Speculation speculation{rule, DraftLength::fixed(1 + i % 6)};
    const PlainAnswer result = PlainWriter(feeder, options, prompt, &speculation).run();
    EXPECT_EQ(result.ids, plain) << "prompt " << i;
    counts.drafted += result.speculation.drafted;
    counts.accepted += result.speculation.accepted;
  }
  EXPECT_GT(counts.accepted, 0);
  RecordProperty("drafted", std::to_string(counts.drafted));
  RecordProperty("accepted", std::to_string(counts.accepted));
}

// Ragged requests through the engine: dense, and under the routers that ship at several budgets in one batch.
// Each is what it is alone.
TEST_F(SmolLM2, TheEngineAnswersAsAloneTheyAre) {
  Context ctx({.threads = 2});
  const Model model = load_model(ctx, path_, {});
  Adapter adapter = load_adapter(ctx, FATHOM_SOURCE_DIR "/models/smollm2-135m-priced", model);
  const std::vector<Calibration> tables =
      calibrations_from_json(adapter.extra.calibration, 2 * model.config.layers, "adapter");
  ASSERT_EQ(tables.front().weight_type, weight_type_name(model));
  const Budgets budgets(tables.front());
  const auto ids = read_json("score.json").at("ids").get<std::vector<int32_t>>();
  std::vector<Request> requests;
  for (const int64_t length : {3, 70, 20, 41, 7}) {
    Request request;
    request.prompt.assign(ids.begin() + length, ids.begin() + 2 * length);
    request.max_tokens = 8 + length % 6;
    request.sampler.temperature = length == 20 ? 0.9f : 0.0f;
    request.sampler.seed = 5;
    requests.push_back(request);
  }
  const DensePolicy dense;
  for (const SkipPolicy* policy :
       {static_cast<const SkipPolicy*>(&dense), static_cast<const SkipPolicy*>(adapter.policy.get())}) {
    const bool skips = policy != &dense;
    for (size_t i = 0; skips && i < requests.size(); ++i) requests[i].budget = i % 2 ? 0.83f : 0.9f;
    const auto together = policy->make_state(ctx, model.config, 4),
               one = policy->make_state(ctx, model.config, 1);
    KvCache many(ctx, model.config, {.sequences = 4, .context = 128}),
        single(ctx, model.config, {.sequences = 1, .context = 128});
    Feeder feeder(ctx, model, many, *policy, *together), alone(ctx, model, single, *policy, *one);
    std::vector<std::vector<int32_t>> heard;
    {
      BatcherOptions options;
      options.rows = 32;
      options.budgets = &budgets;
      Engine engine = make_engine(feeder, options);
      std::vector<Answer> answers;
      for (const Request& request : requests) answers.push_back(std::move(engine.submit(request).front()));
      for (Answer& answer : answers) {
        heard.emplace_back();
        while (const std::optional<Token> token = answer.next()) {
          if (!token->ends) heard.back().push_back(token->id);
        }
        EXPECT_EQ(answer.end().error, "");
      }
      const double ran = engine.stats().savings.block_flops;
      EXPECT_EQ(ran < 0.95, skips) << ran;
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      if (skips) one->set_thresholds(ctx, 0, tables.front().thresholds(*requests[i].budget));
      AnswerOptions options = requests[i];
      options.end_ids = end_token_ids(model);
      EXPECT_EQ(heard[i], PlainWriter(alone, options, requests[i].prompt).run().ids) << "request " << i;
    }
  }
}

// The list that ships drops what its budget says; without its LoRA it would cost nearly three nats at 0.75.
TEST_F(SmolLM2, TheListThatShipsMeetsItsBudgets) {
  const ScratchFolder folder;
  std::ifstream book(FATHOM_SOURCE_DIR "/configs/small/secret_garden.txt");
  std::string text(3000, ' ');
  book.read(text.data(), static_cast<std::streamsize>(text.size()));
  const Words score{"score", "-m", path_, "--file", folder.write("text.txt", text), "--json", "-q"};
  const double dense = run_fathom(score).json()["nll"].get<double>();
  const Words adapted = score + Words{"--adapter", FATHOM_SOURCE_DIR "/models/smollm2-135m", "--budget"};
  for (const auto& [budget, most] : {std::pair{"0.9", 0.4}, std::pair{"0.75", 0.8}}) {
    const Json ran = run_fathom(adapted + Words{budget}).json();
    EXPECT_NEAR(ran["block_flops"].get<double>(), std::stod(budget), 0.03);
    EXPECT_LT(ran["nll"].get<double>() - dense, most) << budget;
  }
}

}  // namespace
}  // namespace fathom
