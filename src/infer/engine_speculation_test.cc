// Speculation inside the engine: rounds share passes with everything else, and no answer can tell.
#include "infer/batcher.h"
#include "infer/engine_rig_test.h"
#include "infer/every_method_test.h"
#include "model/load.h"

namespace fathom {
namespace {

DraftOptions drafts_of(int64_t count, DraftKind kind = DraftKind::kExit, double budget = 0.7) {
  return {.drafts = count, .kind = kind, .budget = budget};
}

Request speculating(std::vector<int32_t> prompt, int64_t tokens, const DraftOptions& drafts) {
  Request request = request_of(std::move(prompt), tokens);
  request.speculate = drafts;
  return request;
}

void sample(Request& request, Rng& rng) {
  request.sampler.temperature = 1.3f;
  request.sampler.seed = rng.next_u32();
}

// Four answers with 3 drafts a round: three passes of their drafts, one in which all of them verify.
TEST(EngineSpeculation, RoundsShareTheirPasses) {
  EngineRig rig(R"({"name": "dense"})", 4);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(3);
  std::vector<Answer> answers;
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(speculating(random_prompt(rng, 5), 40, drafts_of(3)));
    for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
  }
  for (int i = 0; i < 9; ++i) batcher.step();
  EXPECT_EQ(rig.many.policy.rows, (std::vector<int64_t>{20, 4, 4, 4, 16, 4, 4, 4, 16}));
  run_out(batcher);
  SpeculationCounts counts;
  for (size_t i = 0; i < 4; ++i) {
    const Heard heard = hear(answers[i]);
    EXPECT_EQ(heard.ids, rig.ids_alone(requests[i]));
    requests[i].speculate.reset();
    EXPECT_EQ(heard.ids, rig.ids_alone(requests[i])) << "greedy: the plain tokens";
    counts += heard.end.stats.speculation;
  }
  EXPECT_GT(counts.accepted, 0);
  EXPECT_LT(counts.accepted, counts.drafted);
  EXPECT_EQ(batcher.stats().speculation.verify_passes, counts.verify_passes);
  EXPECT_EQ(batcher.stats().passes, rig.many.policy.passes);
}

// What a dense model would have run for the same answers, with and without drafts: passes shared by all four.
TEST(EngineSpeculation, TheBooksKnowThatPassesAreShared) {
  const auto dense_bytes = [](bool drafts) {
    EngineRig rig(R"({"name": "dense"})", 4);
    Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
    Rng rng(3);
    std::vector<Answer> answers;
    for (int i = 0; i < 4; ++i) {
      Request request = request_of(random_prompt(rng, 5), 40);
      if (drafts) request.speculate = drafts_of(1 + i);
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
    }
    run_out(batcher);
    const Work work = rig.many.feeder.work();
    return static_cast<double>(work.weight_bytes + work.cache_bytes) / batcher.stats().savings.net_bytes;
  };
  // Not quite: the last token of an answer is decoded plainly, in a pass that counts though others were
  // ahead.
  EXPECT_NEAR(dense_bytes(true) / dense_bytes(false), 1, 0.05);
}

// Who has drafted waits for the others' drafts, and all verify together.
TEST(EngineSpeculation, DraftsGoBeforeTheVerification) {
  EngineRig rig(R"({"name": "dense"})", 2);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(3);
  std::vector<Answer> shorter = submit(batcher, speculating(random_prompt(rng, 5), 40, drafts_of(1))),
                      longer = submit(batcher, speculating(random_prompt(rng, 5), 40, drafts_of(4)));
  for (int i = 0; i < 6; ++i) batcher.step();
  EXPECT_EQ(rig.many.policy.rows, (std::vector<int64_t>{10, 2, 1, 1, 1, 7}));
}

// Where somebody needs the whole model anyway, everything goes into one pass.
TEST(EngineSpeculation, PlainAnswersAndPromptsAreNotKeptWaiting) {
  EngineRig rig(R"({"name": "dense"})", 3);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy(16)));
  Rng rng(3);
  std::vector<Answer> plain = submit(batcher, request_of(random_prompt(rng, 4), 40)),
                      drafting = submit(batcher, speculating(random_prompt(rng, 4), 40, drafts_of(3)));
  batcher.step();
  for (int i = 0; i < 4; ++i) batcher.step();
  std::vector<Answer> prompt = submit(batcher, request_of(random_prompt(rng, 30), 2));
  batcher.step();
  EXPECT_EQ(rig.many.policy.rows, (std::vector<int64_t>{8, 2, 2, 2, 5, 16}));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(ready(plain[0]) && plain[0].next()) << "a token of every pass";
  EXPECT_FALSE(ready(plain[0]));
}

TEST(EngineSpeculation, VerificationIsNotTornByASmallPass) {
  EngineRig rig(R"({"name": "dense"})", 3);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy(4)));
  Rng rng(3);
  std::vector<Request> requests;
  std::vector<Answer> answers;
  for (int i = 0; i < 3; ++i) {
    requests.push_back(speculating(random_prompt(rng, 3), 20, drafts_of(6)));
    sample(requests.back(), rng);
    for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
  }
  run_out(batcher);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(hear(answers[i]).ids, rig.ids_alone(requests[i]));
  EXPECT_EQ(*std::max_element(rig.many.policy.rows.begin(), rig.many.policy.rows.end()), 7);
}

// One pool of 5 pages a layer for 8 answers that draft: they wait, make room in the middle of a round, and
// draft no less for it.
TEST(EngineSpeculation, AFullCacheChangesNoAnswer) {
  for (const char* json : {R"({"name": "dense"})", R"({"name": "gate_skip", "skipped_kv": "copy"})",
                           R"({"name": "mind_skip", "pool": "prefix:5"})"}) {
    KvCacheOptions cache = cache_of(8);
    cache.pages = 5 * 4;
    EngineRig rig(json, cache);
    Batcher batcher(rig.many.feeder, rig.with_tables(roomy(32)));
    Rng rng(21);
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 16; ++i) {
      Request request = request_of(random_prompt(rng, 20 + rng.below(30)), 60);
      if (i % 2 == 0) request.budget = 0.8f;
      if (i % 4 > 0) request.speculate = random_drafts(rng, request);
      sample(request, rng);
      requests.push_back(request);
      for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
      batcher.step();
    }
    run_out(batcher);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Heard heard = hear(answers[i]);
      const PlainAnswer alone = rig.generate_alone(requests[i]);
      ASSERT_EQ(heard.ids, alone.ids) << json << ", request " << i;
      ASSERT_EQ(heard.depth, alone.depth) << json << ", request " << i;
      ASSERT_EQ(heard.end.stats.speculation.drafted, alone.speculation.drafted) << json << ", request " << i;
    }
    EXPECT_GT(batcher.stats().preemptions, 0) << json;
  }
}

// Cancelled and timed out in every phase of a round; the others go on, and what is kept of it is right.
TEST(EngineSpeculation, EndsInTheMiddleOfARound) {
  EngineRig rig(R"({"name": "gate_skip"})", 3);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(5);
  for (int steps = 1; steps < 12; ++steps) {
    Request request = speculating(random_prompt(rng, 6), 30, drafts_of(3, DraftKind::kMethod, 0.5));
    Request other = speculating(random_prompt(rng, 7), 30, drafts_of(4, DraftKind::kHarmOrder, 0.5));
    sample(request, rng);
    sample(other, rng);
    request.budget = 0.8f;
    std::vector<Answer> first = submit(batcher, request), beside = submit(batcher, other);
    for (int i = 0; i < steps; ++i) batcher.step();
    first[0].cancel();
    batcher.step();
    const Heard heard = hear(first[0]);
    EXPECT_EQ(heard.end.reason, FinishReason::kCancelled);
    std::vector<Answer> again = submit(batcher, request);
    run_out(batcher);
    const std::vector<int32_t> alone = rig.ids_alone(request);
    EXPECT_TRUE(std::equal(heard.ids.begin(), heard.ids.end(), alone.begin())) << steps;
    EXPECT_EQ(hear(beside[0]).ids, rig.ids_alone(other)) << steps;
    const Heard second = hear(again[0]);
    EXPECT_EQ(second.ids, alone) << steps;
    EXPECT_GT(second.end.stats.reused_tokens, 0) << steps;
  }
}

// A stop in the middle of what a round gave: the rest is not shown, and what is kept ends there.
TEST(EngineSpeculation, StopsWithinARound) {
  EngineRig rig(R"({"name": "dense"})", 2);
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Rng rng(9);
  for (int i = 0; i < 8; ++i) {
    Request request = speculating(random_prompt(rng, 5), 30, drafts_of(5));
    const std::vector<int32_t> ids = rig.ids_alone(request);
    request.end_ids = {ids[static_cast<size_t>(3 + i)]};
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    const Heard heard = hear(answers[0]);
    const PlainAnswer alone = rig.generate_alone(request);
    EXPECT_EQ(heard.ids, alone.ids);
    EXPECT_EQ(heard.end.reason, alone.finish);
    request.end_ids.clear();
    request.prompt.insert(request.prompt.end(), heard.ids.begin(), heard.ids.end());
    answers = submit(batcher, request);
    run_out(batcher);
    EXPECT_EQ(hear(answers[0]).ids, rig.ids_alone(request));
  }
}

// Forked while the first of them drafts.
TEST(EngineSpeculation, SeveralAnswersToOnePrompt) {
  for (const char* json :
       {R"({"name": "dense"})", R"({"name": "gate_skip"})", R"({"name": "skip_middle"})"}) {
    EngineRig rig(json, 3);
    Batcher batcher(rig.many.feeder, rig.with_tables(roomy(16)));
    Rng rng(5);
    Request request = speculating(random_prompt(rng, 30), 20, drafts_of(4, DraftKind::kMethod, 0.5));
    sample(request, rng);
    request.budget = 0.8f;
    request.answers = 6;
    std::vector<Answer> answers = submit(batcher, request);
    run_out(batcher);
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_EQ(hear(answers[static_cast<size_t>(i)]).ids, rig.ids_alone(request, i)) << json;
  }
}

TEST(EngineSpeculation, QuantisedWeights) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const char* json : {R"({"name": "dense"})", R"({"name": "priced"})"}) {
      EngineRig rig(json, cache_of(4), blocks_config());
      convert_weights(rig.rig.ctx, rig.rig.model, type, true);
      Batcher batcher(rig.many.feeder, rig.with_tables(roomy(24)));
      Rng rng(11);
      std::vector<Request> requests;
      std::vector<Answer> answers;
      for (int i = 0; i < 12; ++i) {
        Request request = random_request(rng);
        if (i % 3 > 0) request.speculate = random_drafts(rng, request);
        requests.push_back(request);
        for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
        batcher.step();
      }
      run_out(batcher);
      for (size_t i = 0; i < requests.size(); ++i) {
        const Heard heard = hear(answers[i]);
        ASSERT_EQ(heard.ids, rig.ids_alone(requests[i])) << name_of(type) << json << ", request " << i;
        const ScoreResult score = rig.score_alone(requests[i], heard.ids);
        for (size_t t = 0; t < heard.ids.size(); ++t)
          ASSERT_EQ(heard.logprobs[t], score.logprobs[requests[i].prompt.size() + t]);
      }
    }
  }
}

TEST(EngineSpeculation, NamesTheLayerThatBreaks) {
  EngineRig rig;
  rig.rig.model.weights.embedding.data<float>()[7 * 32] = NAN;  // of token 7
  Batcher batcher(rig.many.feeder, rig.with_tables(roomy()));
  Request broken = speculating({1, 2, 3}, 20, drafts_of(3)), good = broken;
  broken.sampler.logit_bias = {{7, 100.0f}};
  good.sampler.logit_bias = {{7, -INFINITY}};
  std::vector<Answer> bad = submit(batcher, broken), well = submit(batcher, good);
  run_out(batcher);
  const Heard heard = hear(bad[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kError);
  EXPECT_TRUE(heard.end.error.ends_with("; first not finite after the embedding")) << heard.end.error;
  EXPECT_EQ(hear(well[0]).ids, rig.ids_alone(good));
  EXPECT_THROW(rig.ids_alone(broken), UserError);
  EXPECT_EQ(rig.ids_alone(good).size(), 20u) << "the generator's feeder is fit for the next";
}

TEST(EngineSpeculation, RefusesWhatItCannotDraft) {
  EngineRig rig(R"({"name": "gate_skip"})");
  BatcherOptions options = roomy();
  const auto refusal = [&](Feeder& feeder, const DraftOptions& drafts, float budget = 1) {
    try {
      Request request = speculating({1, 2, 3}, 5, drafts);
      if (budget < 1) request.budget = budget;
      Batcher(feeder, options).prepare(request);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Feeder& feeder = rig.many.feeder;
  EXPECT_EQ(refusal(feeder, drafts_of(3)), "");
  EXPECT_EQ(refusal(feeder, drafts_of(17)), "a round has from 1 to 16 drafts, or 0 (as many as pay), got 17");
  EXPECT_EQ(refusal(feeder, drafts_of(3, DraftKind::kExit, 1)),
            "a draft budget must be above 0 and below 1, got 1");
  EXPECT_EQ(refusal(feeder, drafts_of(3, DraftKind::kMethod)),
            "a draft by the method needs a model with a calibration table");
  EXPECT_EQ(refusal(feeder, drafts_of(3, DraftKind::kHarmOrder)),
            "a draft by the harm order needs one, and none was measured");
  options = rig.with_tables(options);
  EXPECT_EQ(refusal(feeder, drafts_of(3, DraftKind::kMethod, 0.7), 0.6f),
            "a draft budget must be below the output's, 0.6, got 0.7");
  EngineRig whole(R"({"name": "mind_skip", "pool": "prompt"})");
  EXPECT_NE(refusal(whole.many.feeder, drafts_of(3)).find("decides on the whole prompt"), std::string::npos);
  const std::unique_ptr<SkipState> state = rig.rig.make_state(1);
  Feeder plain(rig.rig.ctx, rig.rig.model, rig.alone.cache, *rig.rig.policy, *state);
  EXPECT_EQ(refusal(plain, drafts_of(3)),
            "this engine does not draft with the model: its policy is not made for it");
  EXPECT_EQ(refusal(plain, {.drafts = 3}), "");  // of no kind in particular: looked up
  EXPECT_EQ(refusal(feeder, {.drafts = 3, .budget = 0.7}, 0.6f), "");
}

}  // namespace
}  // namespace fathom
