// Drafts that are looked up, inside the engine: no pass makes them, and no answer can tell.
#include "infer/batcher.h"
#include "infer/engine_rig_test.h"
#include "infer/generate.h"

namespace fathom {
namespace {

constexpr DraftOptions kLookup{.drafts = 6, .kind = DraftKind::kLookup};

// A piece again and again, and some of it at the end: there is always something to look up.
std::vector<int32_t> repeating_prompt(Rng& rng, int64_t length, int64_t period) {
  const std::vector<int32_t> piece = random_prompt(rng, period);
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < length; ++i) prompt.push_back(piece[static_cast<size_t>(i % period)]);
  return prompt;
}

Request looking_up(std::vector<int32_t> prompt, int64_t tokens, const DraftOptions& drafts = kLookup) {
  Request request = request_of(std::move(prompt), tokens);
  request.speculate = drafts;
  return request;
}

std::vector<int32_t> plain_ids(EngineRig& rig, Request request) {
  request.speculate.reset();
  return rig.ids_alone(request);
}

// A round is one pass over the rows that were found: two answers verify together.
TEST(EngineLookup, ARoundIsOnePass) {
  EngineRig rig(R"({"name": "dense"})", 2);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(3);
  std::vector<Request> requests;
  std::vector<Answer> answers;
  for (int i = 0; i < 2; ++i) {
    requests.push_back(looking_up(repeating_prompt(rng, 12, 4), 60));
    for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
  }
  run_out(batcher);
  SpeculationCounts counts;
  for (size_t i = 0; i < 2; ++i) {
    const Heard heard = hear(answers[i]);
    EXPECT_EQ(heard.ids, plain_ids(rig, requests[i])) << "greedy: the plain tokens";
    EXPECT_EQ(heard.ids, rig.ids_alone(requests[i]));
    counts += heard.end.stats.speculation;
  }
  EXPECT_EQ(counts.draft_passes, 0);
  EXPECT_GT(counts.accepted, 10);
  EXPECT_LT(counts.accepted, counts.drafted);
  EXPECT_EQ(counts.looked_up, counts.drafted);
  EXPECT_LT(rig.many.policy.passes, 60);
  EXPECT_EQ(batcher.stats().passes, rig.many.policy.passes);
}

// Without the policy that drafts of the model need, and without records; there is nothing to pay for them.
TEST(EngineLookup, NeedsNoPolicyAndNoRecords) {
  EngineRig rig(R"({"name": "gate_skip"})", 1);
  const std::unique_ptr<SkipState> state = rig.rig.make_state(2);
  KvCache cache(rig.rig.ctx, rig.rig.model.config, cache_of(2));
  Feeder feeder(rig.rig.ctx, rig.rig.model, cache, *rig.rig.policy, *state);
  for (const bool records : {false, true}) {
    BatcherOptions options = rig.with_tables(roomy());
    options.records = records;
    Batcher batcher(feeder, options);
    Rng rng(5);
    for (const DraftOptions& drafts : {kLookup, DraftOptions{}}) {  // by lookup, and whatever pays
      const Request request = looking_up(repeating_prompt(rng, 14, 5), 40, drafts);
      std::vector<Answer> answers = submit(batcher, request);
      run_out(batcher);
      const Heard heard = hear(answers[0]);
      EXPECT_EQ(heard.end.error, "");
      EXPECT_EQ(heard.ids, plain_ids(rig, request));
      EXPECT_GT(heard.end.stats.speculation.looked_up, 0);
      EXPECT_EQ(heard.end.stats.depth > 0, records);
    }
    Request by_model = looking_up({1, 2, 3}, 5, {.drafts = 2, .kind = DraftKind::kExit, .budget = 0.5});
    EXPECT_THROW(batcher.prepare(by_model), UserError);
  }
}

// Rounds of every kind share a cache that is too small for all: they wait, give up their places in the middle
// of a round, and no answer changes. mind_skip: the prefix that decides ends inside a round.
TEST(EngineLookup, AFullCacheChangesNoAnswer) {
  for (const char* json : {R"({"name": "dense"})", R"({"name": "gate_skip", "skipped_kv": "copy"})",
                           R"({"name": "mind_skip", "pool": "prefix:40"})",
                           R"({"name": "mind_skip", "pool": "prefix:24", "skipped_kv": "hide"})"}) {
    KvCacheOptions cache = cache_of(8);
    cache.pages = 5 * 4;
    EngineRig rig(json, cache);
    Batcher batcher(rig.many.feeder, rig.with_tables(roomy(32)));
    Rng rng(22);
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 16; ++i) {
      Request request = looking_up(repeating_prompt(rng, 16 + rng.below(30), 3 + i % 5), 60);
      request.speculate->drafts = i % 3 == 0 ? 0 : 1 + rng.below(16);
      if (i % 4 == 3) request.speculate = random_drafts(rng, request);
      if (i % 2 == 0) {
        request.sampler.temperature = 1.3f;
        request.sampler.seed = rng.next_u32();
      }
      requests.push_back(request);
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
      batcher.step();
    }
    run_out(batcher);
    int64_t looked_up = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Heard heard = hear(answers[i]);
      const PlainAnswer alone = rig.generate_alone(requests[i]);
      ASSERT_EQ(heard.ids, alone.ids) << json << ", request " << i;
      ASSERT_EQ(heard.depth, alone.depth) << json << ", request " << i;
      ASSERT_EQ(heard.end.stats.speculation.drafted, alone.speculation.drafted) << json << ", request " << i;
      if (requests[i].sampler.temperature == 0) {
        ASSERT_EQ(heard.ids, plain_ids(rig, requests[i])) << json << ", request " << i;
      }
      looked_up += heard.end.stats.speculation.looked_up;
    }
    EXPECT_GT(looked_up, 100) << json;
    EXPECT_GT(batcher.stats().preemptions, 0) << json;
  }
}

// Short prefixes: the row that decides for the sequence is one that a round took back.
TEST(EngineLookup, RowsThatGoDecideNothing) {
  for (int64_t prefix = 8; prefix < 24; ++prefix) {
    EngineRig rig(R"({"name": "mind_skip", "skipped_kv": "hide", "pool": "prefix:)" + std::to_string(prefix) +
                  R"("})");
    Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
    Rng rng(static_cast<uint64_t>(prefix));
    const Request request =
        looking_up(repeating_prompt(rng, 7, 3), 40, {.drafts = 7, .kind = DraftKind::kLookup});
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    EXPECT_EQ(hear(answers[0]).ids, plain_ids(rig, request)) << prefix;
  }
}

// Rounds end with the context and with the tokens asked for.
TEST(EngineLookup, NearTheEndOfTheContext) {
  EngineRig rig(R"({"name": "dense"})", 2);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(8);
  for (int64_t room = 1; room < 20; ++room) {
    Request request =
        looking_up(repeating_prompt(rng, 12, 4), -1, {.drafts = 16, .kind = DraftKind::kLookup});
    request.context = 12 + room;
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    const Heard heard = hear(answers[0]);
    EXPECT_EQ(std::ssize(heard.ids), room + 1);
    EXPECT_EQ(heard.end.reason, FinishReason::kLength);
    request.max_tokens = room + 1;
    EXPECT_EQ(heard.ids, plain_ids(rig, request));
    request.context = 0;
    answers = submit(batcher, request);
    run_out(batcher);
    EXPECT_EQ(hear(answers[0]).ids, heard.ids);
  }
}

TEST(EngineLookup, AfterAContextShift) {
  EngineRig rig(R"({"name": "dense"})", 2);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(8);
  std::vector<std::vector<int32_t>> ids;
  for (const bool drafts : {false, true}) {
    Rng same(8);
    Request request = request_of(repeating_prompt(same, 12, 4), 90);
    request.context = 32;
    request.context_shift = true;
    if (drafts) request.speculate = kLookup;
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    const Heard heard = hear(answers[0]);
    EXPECT_GT(heard.end.stats.context_shifts, 1);
    ids.push_back(heard.ids);
  }
  EXPECT_EQ(ids[0], ids[1]);
}

TEST(EngineLookup, ManyAnswersOfManyKindsAreWhatTheyAreAlone) {
  EngineRig rig(R"({"name": "priced"})", 5);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy(40)));
  Rng rng(31);
  std::vector<Request> requests;
  std::vector<Answer> answers;
  for (int i = 0; i < 24; ++i) {
    Request request = random_request(rng);
    request.prompt = repeating_prompt(rng, 4 + rng.below(40), 2 + i % 6);
    request.answers = 1;
    if (i % 3 > 0) request.speculate = i % 3 == 1 ? kLookup : random_drafts(rng, request);
    requests.push_back(request);
    for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
    for (int64_t step = rng.below(4); step > 0; --step) batcher.step();
    if (i % 7 == 6) answers[static_cast<size_t>(i)].cancel();
  }
  run_out(batcher);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Heard heard = hear(answers[i]);
    const std::vector<int32_t> alone = rig.ids_alone(requests[i]);
    ASSERT_LE(heard.ids.size(), alone.size());
    ASSERT_TRUE(std::equal(heard.ids.begin(), heard.ids.end(), alone.begin())) << "request " << i;
    if (i % 7 != 6) {
      ASSERT_EQ(heard.ids.size(), alone.size()) << "request " << i;
    }
    const ScoreResult score = rig.score_alone(requests[i], heard.ids);
    for (size_t t = 0; t < heard.ids.size(); ++t)
      ASSERT_EQ(heard.logprobs[t], score.logprobs[requests[i].prompt.size() + t]);
  }
}

// The model drafts from a part of the vocabulary; a mask may leave nothing of it.
TEST(EngineLookup, DraftsFromAPartOfTheVocabulary) {
  class Above final : public TokenMask {
    void forbid(std::span<float> logits) override { std::fill_n(logits.begin(), 20, -INFINITY); }
    void accept(int32_t) override {}
    void rollback(int64_t) override {}
  };
  EngineRig rig(R"({"name": "dense"})", 4);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(4);
  for (const bool masked : {false, true}) {
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (const int64_t vocab : {1, 10, 30, 48, 0}) {
      Request request = looking_up(random_prompt(rng, 6), 30,
                                   {.drafts = 3, .kind = DraftKind::kExit, .budget = 0.7, .vocab = vocab});
      if (masked) request.mask = [] { return std::make_unique<Above>(); };
      requests.push_back(request);
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
    }
    run_out(batcher);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Heard heard = hear(answers[i]);
      EXPECT_EQ(heard.end.error, "");
      Request plain = requests[i];
      plain.speculate.reset();
      std::vector<Answer> again = submit(batcher, plain);
      run_out(batcher);
      EXPECT_EQ(heard.ids, hear(again[0]).ids);
      EXPECT_EQ(heard.end.stats.speculation.drafted > 0, !masked || i >= 2) << i;
    }
  }
}

TEST(EngineLookup, RefusesAVocabularyThatIsNot) {
  EngineRig rig;
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  const auto refusal = [&](const DraftOptions& drafts) {
    try {
      batcher.prepare(looking_up({1, 2, 3}, 5, drafts));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({.kind = DraftKind::kExit, .vocab = 48}), "");
  EXPECT_EQ(refusal({.kind = DraftKind::kExit, .vocab = 49}),
            "drafts are drawn from 1 to 48 tokens (the model's vocabulary), or 0 (all), got 49");
  EXPECT_NE(refusal({.kind = DraftKind::kExit, .vocab = -1}), "");
  EXPECT_EQ(refusal({.kind = DraftKind::kLookup, .vocab = 8}),
            "drafts that are looked up are drawn from no vocabulary: theirs must be 0, got 8");
  EXPECT_EQ(refusal({.drafts = 17, .kind = DraftKind::kLookup}),
            "a round has from 1 to 16 drafts, or 0 (as many as pay), got 17");
}

}  // namespace
}  // namespace fathom
