// An answer is what it is alone, whatever shares its passes; and what comes with it.
#include "infer/batcher.h"
#include "infer/engine_rig_test.h"
#include "infer/story_model_test.h"

namespace fathom {
namespace {

class MixedRequests : public testing::TestWithParam<const char*> {};

// 40 requests at several budgets, half of them with drafts of all kinds, that come one after another into 6
// places: each is what it is alone, bit for bit.
TEST_P(MixedRequests, AreEachAsAlone) {
  EngineRig rig(GetParam(), 6);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy(24)));
  Rng rng(11);
  std::vector<Request> requests;
  std::vector<Answer> answers;
  for (int i = 0; i < 40; ++i) {
    requests.push_back(random_request(rng));
    Request& request = requests.back();
    if (rng.below(2) == 0 && !rig.rig.policy->needs_whole_prompt())
      request.speculate = random_drafts(rng, request);
    for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
    for (uint32_t steps = rng.below(4); steps > 0; --steps) batcher.step();
  }
  run_out(batcher);
  int64_t tokens = 0, accepted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Heard heard = hear(answers[i]);
    const PlainAnswer alone = rig.generate_alone(requests[i]);
    ASSERT_EQ(heard.ids, alone.ids) << "request " << i;
    ASSERT_EQ(heard.depth, alone.depth) << "request " << i;
    ASSERT_EQ(heard.end.reason, alone.finish) << "request " << i;
    ASSERT_EQ(heard.end.stats.speculation.accepted, alone.speculation.accepted) << "request " << i;
    accepted += alone.speculation.accepted;
    tokens += static_cast<int64_t>(heard.ids.size()) + heard.ended_by_token;
    if (rig.rig.policy->needs_whole_prompt()) continue;  // a score has no prompt
    const ScoreResult score = rig.score_alone(requests[i], heard.ids, 3);
    const size_t prompt = requests[i].prompt.size();
    for (size_t t = 0; t < heard.ids.size(); ++t) {
      ASSERT_EQ(heard.logprobs[t], score.logprobs[prompt + t]) << "request " << i << ", token " << t;
      if (requests[i].log_probs == 0) continue;
      for (size_t k = 0; k < 3; ++k) {
        ASSERT_EQ(heard.top[t][k].id, score.top[prompt + t][k].id);
        ASSERT_EQ(heard.top[t][k].logprob, score.top[prompt + t][k].logprob);
      }
    }
    ASSERT_EQ(heard.prompt != nullptr, requests[i].score_prompt);
    if (!heard.prompt) continue;
    ASSERT_EQ(
        heard.prompt->logprobs,
        std::vector<float>(score.logprobs.begin(), score.logprobs.begin() + static_cast<ptrdiff_t>(prompt)));
  }
  EXPECT_GT(tokens, 100);
  EXPECT_EQ(accepted > 0, !rig.rig.policy->needs_whole_prompt());
  EXPECT_EQ(batcher.stats().speculation.accepted, accepted);
  EXPECT_EQ(batcher.stats().generated_tokens, tokens);
  EXPECT_EQ(batcher.stats().passes, rig.many.policy.passes);
}

INSTANTIATE_TEST_SUITE_P(Methods, MixedRequests,
                         testing::Values(R"({"name": "dense"})", R"({"name": "gate_skip"})",
                                         R"({"name": "gate_skip", "copy_kv": true})", R"({"name": "priced"})",
                                         R"({"name": "skip_middle"})", R"({"name": "skip_layer"})",
                                         R"({"name": "mixture_of_depths"})",
                                         R"({"name": "random", "skipped_kv": "hide"})", R"({"name": "calm"})",
                                         R"({"name": "mind_skip", "pool": "prefix:5"})",
                                         R"({"name": "mind_skip", "pool": "prompt"})",
                                         R"({"name": "mind_skip", "pool": "full"})"));

TEST(Answers, SeveralAnswersToOnePrompt) {
  for (const char* json : {R"({"name": "gate_skip"})", R"({"name": "mind_skip", "pool": "prompt"})"}) {
    EngineRig rig(json, 8);
    Batcher batcher(rig.many.feeder, roomy());
    Rng rng(5);
    Request request = request_of(random_prompt(rng, 30), 12);
    request.sampler.temperature = 1.5f;
    request.sampler.seed = 77;
    request.answers = 4;
    request.score_prompt = true;
    std::vector<Answer> answers = submit(batcher, request);
    ASSERT_EQ(answers.size(), 4u);
    run_out(batcher);
    std::vector<std::vector<int32_t>> all;
    for (int64_t i = 0; i < 4; ++i) {
      const Heard heard = hear(answers[static_cast<size_t>(i)]);
      EXPECT_EQ(heard.ids, rig.ids_alone(request, i)) << "answer " << i;
      ASSERT_TRUE(heard.prompt);
      EXPECT_EQ(heard.prompt->logprobs.size(), 30u);
      all.push_back(heard.ids);
    }
    EXPECT_NE(all[0], all[1]);
    EXPECT_NE(all[2], all[3]);
  }
}

// The prompt's 100 rows once; then, for each of the others, the last of them again.
TEST(Answers, SeveralAnswersShareTheirPrompt) {
  EngineRig rig(R"({"name": "dense"})", 4);
  BatcherOptions options = roomy();
  options.keep_prefixes = false;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 100), 3);
  request.answers = 4;
  std::vector<Answer> answers = submit(batcher, request);
  run_out(batcher);
  EXPECT_EQ(rig.many.policy.rows, (std::vector<int64_t>{64, 36, 4, 4, 3}));
  EXPECT_EQ(hear(answers[3]).end.stats.reused_tokens, 99);
  EXPECT_EQ(rig.many.cache.bytes_held(), 0);
}

TEST(Answers, PromptsAreScoredAsTextsAre) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy(16));
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 50), 1);
  request.score_prompt = true;
  request.log_probs = 5;
  Request nothing_else = request;
  nothing_else.max_tokens = 0;
  for (const Request& each : {request, nothing_else}) {
    std::vector<Answer> answers = submit(batcher, each);
    run_out(batcher);
    const Heard heard = hear(answers[0]);
    EXPECT_EQ(heard.end.reason, FinishReason::kLength);
    EXPECT_EQ(heard.ids.size(), static_cast<size_t>(each.max_tokens));
    const ScoreResult score = rig.score_alone(request, {}, 5);
    ASSERT_TRUE(heard.prompt);
    EXPECT_EQ(heard.prompt->logprobs, score.logprobs);
    ASSERT_EQ(heard.prompt->top.size(), 50u);
    EXPECT_TRUE(heard.prompt->top[0].empty());
    for (size_t i = 1; i < 50; ++i) {
      for (size_t k = 0; k < 5; ++k) {
        EXPECT_EQ(heard.prompt->top[i][k].id, score.top[i][k].id);
        EXPECT_EQ(heard.prompt->top[i][k].logprob, score.top[i][k].logprob);
      }
    }
  }
}

TEST(Answers, APrefixIsComputedOnce) {
  EngineRig rig(R"({"name": "mind_skip", "pool": "prefix:5"})", 3);
  Batcher batcher(rig.many.feeder, roomy());
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 40), 5);
  std::vector<Answer> first = submit(batcher, request);
  run_out(batcher);
  EXPECT_EQ(hear(first[0]).end.stats.reused_tokens, 0);
  request.prompt.resize(30);
  request.prompt.push_back(request.prompt.back() == 5 ? 6 : 5);
  std::vector<Answer> second = submit(batcher, request);
  run_out(batcher);
  const Heard heard = hear(second[0]);
  EXPECT_EQ(heard.end.stats.reused_tokens, 30);
  EXPECT_EQ(heard.ids, rig.ids_alone(request));
  EXPECT_EQ(batcher.stats().reused_tokens, 30);
}

TEST(Answers, APrefixAtAnotherBudgetIsAnotherOne) {
  EngineRig rig(R"({"name": "gate_skip"})", 3);
  BatcherOptions options = roomy();
  options.budgets = &*rig.budgets;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(5);
  Request request = request_of(random_prompt(rng, 40), 5);
  for (const std::optional<float> budget : {std::optional<float>(), {0.8f}, {0.6f}}) {
    request.budget = budget;
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    const Heard heard = hear(answers[0]);
    EXPECT_EQ(heard.end.stats.reused_tokens, 0);
    EXPECT_EQ(heard.ids, rig.ids_alone(request));
  }
  std::vector<Answer> again = submit(batcher, request);
  run_out(batcher);
  EXPECT_EQ(hear(again[0]).end.stats.reused_tokens, 39);
}

TEST(Answers, DepthIsEachRowsOwn) {
  EngineRig rig(R"({"name": "gate_skip"})", 4);
  BatcherOptions with_budget = roomy();
  with_budget.budgets = &*rig.budgets;
  with_budget.budget = 0.6f;
  Batcher batcher(rig.many.feeder, with_budget);
  Rng rng(5);
  std::vector<Request> requests;
  std::vector<Answer> answers;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(request_of(random_prompt(rng, 5), 12));
    for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
  }
  run_out(batcher);
  for (size_t i = 0; i < 4; ++i) {
    requests[i].budget = 0.6f;
    const PlainAnswer alone = rig.generate_alone(requests[i]);
    const Heard heard = hear(answers[i]);
    EXPECT_EQ(heard.depth, alone.depth);
    EXPECT_LT(heard.end.stats.depth, 4);
  }
  int64_t units = 0;
  for (const int64_t rows : batcher.stats().unit_rows) units += rows;
  EXPECT_EQ(1 - static_cast<double>(units) / static_cast<double>(8 * batcher.stats().rows),
            batcher.stats().savings.skip_ratio);
}

TEST(Answers, EndsTheRequestThatBreaksAndNoOther) {
  EngineRig rig;
  rig.rig.model.weights.embedding.data<float>()[7 * 32] = NAN;  // of token 7
  Batcher batcher(rig.many.feeder, roomy());
  Request broken = request_of({1, 2, 7}, 5), good = request_of({1, 2, 3}, 5);
  good.sampler.logit_bias = {{7, -INFINITY}};
  broken.score_prompt = true;
  std::vector<Answer> bad = submit(batcher, broken), well = submit(batcher, good);
  run_out(batcher);
  const Heard heard = hear(bad[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kError);
  EXPECT_NE(heard.end.error.find("; first not finite after the embedding"), std::string::npos)
      << heard.end.error;
  EXPECT_EQ(hear(well[0]).ids.size(), 5u);
}

TEST(Answers, AMaskThatCannotBeMadeEndsItsAnswerAlone) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy());
  Request broken = request_of({1, 2, 7}, 5);
  broken.mask = []() -> std::unique_ptr<TokenMask> { throw std::bad_alloc(); };
  std::vector<Answer> bad = submit(batcher, broken), well = submit(batcher, request_of({1, 2, 3}, 5));
  run_out(batcher);
  EXPECT_EQ(hear(bad[0]).end.reason, FinishReason::kError);
  EXPECT_EQ(hear(well[0]).ids.size(), 5u);
}

TEST(Answers, AScoredPromptThatBreaksIsNamedToo) {
  EngineRig rig;
  rig.rig.model.weights.embedding.data<float>()[7 * 32] = NAN;  // of token 7
  Batcher batcher(rig.many.feeder, roomy());
  Request request = request_of({1, 7, 2, 3}, 5);
  request.score_prompt = true;
  std::vector<Answer> answers = submit(batcher, request);
  run_out(batcher);
  EXPECT_EQ(hear(answers[0]).end.error,
            "a log-probability of the prompt is not a number; first not finite after the embedding");
}

TEST(Answers, NamesTheLayerThatBreaks) {
  EngineRig rig;
  rig.rig.model.weights.blocks[2].down.data<float>()[5] = INFINITY;
  Batcher batcher(rig.many.feeder, roomy());
  std::vector<Answer> answers = submit(batcher, request_of({1, 2, 3}, 5));
  run_out(batcher);
  const Heard heard = hear(answers[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kError);
  const std::string where = "; first not finite after the FFN of layer 2";
  EXPECT_TRUE(heard.end.error.ends_with(where)) << heard.end.error;
  // Alone as well, and in a score.
  const auto refusal = [](auto run) {
    try {
      run();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string alone = refusal([&] { rig.ids_alone(request_of({1, 2, 3}, 5)); });
  EXPECT_FALSE(alone.empty());
  EXPECT_TRUE(heard.end.error.starts_with(alone)) << alone;
  EXPECT_TRUE(refusal([&] { rig.score_alone(request_of({1, 2, 3}, 5), {}); }).ends_with(where));
}

TEST(Answers, RefusesWhatItCannotServe) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy());
  const auto refusal = [&](auto change) {
    Request request = request_of({1, 2, 3}, 5);
    change(request);
    try {
      batcher.prepare(request);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal([](Request&) {}), "");
  EXPECT_EQ(refusal([](Request& r) { r.prompt.clear(); }), "the prompt has no tokens: give it at least one");
  EXPECT_EQ(refusal([](Request& r) { r.prompt.assign(129, 1); }),
            "the prompt has 129 tokens, the context 128: shorten the prompt");
  EXPECT_EQ(refusal([](Request& r) { r.context = 2; }),
            "the prompt has 3 tokens, the context 2: shorten the prompt");
  EXPECT_EQ(refusal([](Request& r) { r.prompt[1] = 48; }), "token 48 is not in the model's vocabulary of 48");
  EXPECT_EQ(refusal([](Request& r) { r.prompt[1] = -1; }), "token -1 is not in the model's vocabulary of 48");
  EXPECT_EQ(refusal([](Request& r) { r.answers = 1'000'000; }),
            "the number of answers must be from 1 to 128, got 1000000");
  EXPECT_EQ(refusal([](Request& r) { r.answers = 0; }), "the number of answers must be from 1 to 128, got 0");
  EXPECT_EQ(refusal([](Request& r) { r.log_probs = 49; }),
            "the number of log-probabilities must be from -1 to 48, got 49");
  EXPECT_EQ(refusal([](Request& r) { r.end_ids = {48}; }), "a stop token must be from 0 to 47, got 48");
  EXPECT_EQ(refusal([](Request& r) { r.min_tokens = 6; }), "min tokens (6) must not be above max tokens (5)");
  EXPECT_EQ(refusal([](Request& r) { r.budget = 0.0f; }), "a budget must be above 0 and at most 1, got 0");
  EXPECT_EQ(refusal([](Request& r) { r.budget = 0.5f; }),
            "a budget of 0.5 needs a method with a calibration table");
  EXPECT_NE(refusal([](Request& r) { r.sampler.top_p = 2; }), "");
  EXPECT_NE(refusal([](Request& r) { r.stops = {""}; }), "");
  EXPECT_NE(refusal([](Request& r) { r.priority = INT64_MAX; }), "");
  EXPECT_NE(refusal([](Request& r) { r.sampler.logit_bias = {{48, 1.0f}}; }), "");
  EXPECT_THROW(Batcher(rig.many.feeder, roomy(8)), UserError);
}

TEST(Answers, TheContextsEnd) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, roomy());
  Request request = request_of({1, 2, 3}, -1);
  request.context = 10;
  std::vector<Answer> some = submit(batcher, request);
  request.context = 0;
  std::vector<Answer> all = submit(batcher, request);
  run_out(batcher);
  const Heard heard = hear(some[0]), full = hear(all[0]);
  EXPECT_EQ(heard.ids.size(), 8u);  // the last one is never fed
  EXPECT_EQ(heard.end.reason, FinishReason::kLength);
  EXPECT_EQ(full.ids.size(), 126u);
  EXPECT_EQ(full.ids, rig.ids_alone(request));
}

TEST(Answers, TextIsAsAloneItIs) {
  StoryModel story(128, 4), alone(128);
  Batcher batcher(story.feeder, roomy());
  Request request;
  request.prompt = story.encode("Once upon a time");
  request.sampler.temperature = 0;
  request.max_tokens = 60;
  request.stops = {"girl named"};
  Request other = request;
  other.stops = {"never there"};
  Request longer = request;
  longer.min_tokens = 40;
  for (const Request& each : {request, other, longer}) {
    std::vector<Answer> answers = submit(batcher, each);
    run_out(batcher);
    AnswerOptions options = each;
    options.end_ids = end_token_ids(story.model);
    const PlainAnswer expected = PlainWriter(alone.feeder, options, each.prompt).run();
    const Heard heard = hear(answers[0]);
    EXPECT_EQ(heard.text, expected.text);
    EXPECT_EQ(heard.ids, expected.ids);
    EXPECT_EQ(heard.end.reason, expected.finish);
    EXPECT_EQ(heard.end.stats.generated, static_cast<int64_t>(expected.ids.size()));
  }
}

}  // namespace
}  // namespace fathom
