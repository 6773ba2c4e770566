// What goes wrong, in the engine and alone: whose answer it ends, and what is said.
#include <atomic>
#include <new>

#include "infer/broken_unit.h"
#include "infer/engine.h"
#include "infer/engine_rig_test.h"
#include "infer/every_method_test.h"
#include "infer/generate.h"
#include "infer/mask_without_memory_test.h"

namespace fathom {
namespace {

class ContextOverflow : public testing::TestWithParam<std::string> {};

Request until_full(std::vector<int32_t> prompt, std::optional<float> budget) {
  Request request = request_of(std::move(prompt), -1);
  request.ignore_eos = true;
  request.budget = budget;
  return request;
}

// Skipping leaves fewer entries than rows; the context counts rows all the same. An answer without an end is
// ended by the context, whatever it skips, beside others, and its prompt may fill it.
TEST_P(ContextOverflow, EndsAnAnswer) {
  EngineRig rig(GetParam(), cache_of(4, 40));
  BatcherOptions options = roomy(16);
  options.budgets = &*rig.budgets;
  Batcher batcher(rig.many.feeder, options);
  Rng rng(2);
  std::vector<Request> requests;
  std::vector<Answer> answers;
  for (const int64_t length : {1, 17, 39, 40}) {
    for (const std::optional<float> budget : {std::optional<float>(), {0.6f}}) {
      requests.push_back(until_full(random_prompt(rng, length), budget));
      for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
    }
  }
  EXPECT_THROW(batcher.prepare(until_full(random_prompt(rng, 41), 0.6f)), UserError);
  run_out(batcher);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Heard heard = hear(answers[i]);
    EXPECT_EQ(heard.end.reason, FinishReason::kLength);
    EXPECT_EQ(heard.ids.size(), 41 - requests[i].prompt.size());  // the last one is never fed
    EXPECT_EQ(heard.ids, rig.ids_alone(requests[i])) << "request " << i;
  }
}

// After a shift the text is that of the kept tokens, as a prompt: in one pass where the policy must see it
// so.
TEST_P(ContextOverflow, ShiftsToThePromptOfTheKeptTokens) {
  for (const float kept : {1.0f, 0.6f}) {
    Rig rig(GetParam());
    rig.calibrate(kept);
    Feeding shifting(rig, cache_of(1, 32)), fresh(rig, cache_of(1, 32));
    Rng rng(3);
    const std::vector<int32_t> prompt = random_prompt(rng, 7);
    GenerateOptions options;
    options.sampler.temperature = 0;
    options.max_tokens = 50;
    options.context_shift = true;
    options.ignore_eos = true;
    BatcherOptions batcher;
    batcher.rows = 4;
    const GenerateResult result = Generator(shifting.feeder, batcher).run(prompt, options);
    ASSERT_EQ(result.ids.size(), 50u);
    EXPECT_EQ(result.stats.context_shifts, 2);  // at 32 tokens, and after the 16 that it made room for
    std::vector<int32_t> fed = prompt;
    fed.insert(fed.end(), result.ids.begin(), result.ids.end());
    // The newer half, which is fed as a prompt; the token that did not fit follows it as any does.
    const std::vector<int32_t> half(fed.begin() + 16, fed.begin() + 32);
    const ArenaScope scope(rig.ctx);
    std::vector<float> logits(static_cast<size_t>(rig.model.config.vocab));
    fresh.feeder.feed(0, half, LogitsFor::kNone);
    for (size_t at = 32; at < 47; ++at) {
      copy_to_host(rig.ctx, fresh.feeder.feed(0, {&fed[at], 1}, LogitsFor::kLast), logits);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      ASSERT_EQ(fed[at + 1], best) << "token " << at + 1;
    }
  }
}

std::vector<std::string> with_whole_prompts() {
  std::vector<std::string> all = every_method();
  all.emplace_back(R"({"name": "mind_skip", "pool": "prompt"})");
  all.emplace_back(R"({"name": "mind_skip", "pool": "full"})");
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ContextOverflow, testing::ValuesIn(with_whole_prompts()), method_test_name);

// Asks to stop in its second pass.
class Stopping final : public ForwardingPolicy {
 public:
  Stopping(const SkipPolicy& inner, std::atomic<bool>& stop) : ForwardingPolicy(inner), stop_(stop) {}
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override {
    if (++passes == 2) stop_ = true;
    ForwardingPolicy::begin(ctx, model, batch, state);
  }
  mutable int passes = 0;

 private:
  std::atomic<bool>& stop_;
};

TEST(Faults, APromptIsCancelledBetweenItsPieces) {
  EngineRig rig(R"({"name": "gate_skip"})");
  std::atomic<bool> stop{false};
  const Stopping policy(*rig.rig.policy, stop);
  Feeder feeder(rig.rig.ctx, rig.rig.model, rig.many.cache, policy, rig.many.state);
  BatcherOptions batcher;
  batcher.rows = 16;
  Generator generator(feeder, batcher);
  Rng rng(4);
  const Request request = request_of(random_prompt(rng, 60), 5);
  GenerateOptions options;
  static_cast<Request&>(options) = request;
  options.cancel = &stop;
  const GenerateResult cut = generator.run(request.prompt, options);
  EXPECT_EQ(cut.finish, FinishReason::kCancelled);
  EXPECT_TRUE(cut.ids.empty());
  EXPECT_EQ(policy.passes, 2);
  // What was fed is still good.
  stop = false;
  const GenerateResult whole = generator.run(request.prompt, options);
  EXPECT_EQ(whole.stats.reused_tokens, 32);
  EXPECT_EQ(whole.ids, rig.ids_alone(request));
}

// A cancelled prompt's rows are kept for others as far as they were computed.
TEST(Faults, WhatACancelledPromptLeftIsRight) {
  EngineRig rig(R"({"name": "gate_skip"})", 3);
  Batcher batcher(rig.many.feeder, roomy(16));
  Rng rng(4);
  const Request request = request_of(random_prompt(rng, 60), 5);
  std::vector<Answer> first = submit(batcher, request);
  batcher.step();
  batcher.step();
  first[0].cancel();
  batcher.step();
  EXPECT_EQ(hear(first[0]).end.reason, FinishReason::kCancelled);
  std::vector<Answer> second = submit(batcher, request);
  run_out(batcher);
  const Heard heard = hear(second[0]);
  EXPECT_EQ(heard.end.stats.reused_tokens, 32);
  EXPECT_EQ(heard.ids, rig.ids_alone(request));
}

// The prompt of a request that wrote token 7, which this one cannot.
Request healed(Request request) {
  request.sampler.logit_bias = {{7, -INFINITY}};
  return request;
}

// NaN of one sequence in passes that others share, in prefill and in decode, under skipping: the others'
// answers are those they give alone, and the pages that held it serve again.
TEST(Faults, NaNStaysWithItsRequest) {
  for (const char* json : {R"({"name": "gate_skip"})", R"({"name": "priced"})", R"({"name": "skip_middle"})",
                           R"({"name": "mind_skip", "pool": "prefix:5"})", R"({"name": "calm"})",
                           R"({"name": "random", "skipped_kv": "copy"})"}) {
    KvCacheOptions cache = cache_of(5);
    cache.pages = 5 * 4;
    EngineRig rig(json, cache);
    rig.rig.model.weights.embedding.data<float>()[7 * 32] = NAN;  // of token 7
    BatcherOptions options = roomy(32);
    options.budgets = &*rig.budgets;
    Batcher batcher(rig.many.feeder, options);
    Rng rng(6);
    std::vector<Request> requests;
    std::vector<Answer> answers;
    for (int i = 0; i < 12; ++i) {
      Request request = request_of(random_prompt(rng, 3 + rng.below(30)), 8);
      for (int32_t& id : request.prompt) id += id == 7;
      request.sampler.logit_bias = {{7, i % 3 == 1 ? 1e6f : -INFINITY}};  // every third writes it
      if (i % 3 == 2) request.prompt[1] = 7;                              // or was given it
      if (i % 2 == 0) request.budget = 0.6f;
      if (i >= 6 && i % 3 == 0) request = healed(requests[static_cast<size_t>(i - 5)]);
      requests.push_back(request);
      for (Answer& answer : submit(batcher, requests.back())) answers.push_back(std::move(answer));
      batcher.step();
    }
    run_out(batcher);
    for (size_t i = 0; i < requests.size(); ++i) {
      const Heard heard = hear(answers[i]);
      if (i % 3 == 0) {
        EXPECT_EQ(heard.end.reason, FinishReason::kLength) << json;
        EXPECT_EQ(heard.ids, rig.ids_alone(requests[i])) << json << ", request " << i;
        continue;
      }
      EXPECT_EQ(heard.end.reason, FinishReason::kError) << json << ", request " << i;
      EXPECT_TRUE(heard.end.error.ends_with("; first not finite after the embedding")) << heard.end.error;
      // A row that skips every layer looks at no other.
      EXPECT_LE(heard.ids.size(), i % 3 == 1 ? 1u : 7u) << json << ", request " << i;
      try {
        rig.ids_alone(requests[i]);
        ADD_FAILURE() << json << ", request " << i << " is well alone";
      } catch (const UserError& error) {
        EXPECT_TRUE(heard.end.error.starts_with(error.what())) << error.what();
      }
    }
  }
}

TEST(Faults, AnAnswerWithoutMemoryEndsAlone) {
  EngineRig rig(R"({"name": "gate_skip"})");
  Batcher batcher(rig.many.feeder, roomy());
  Rng rng(4);
  const Request well = request_of(random_prompt(rng, 9), 8);
  Request broken = request_of(random_prompt(rng, 9), 8);
  broken.ignore_eos = true;
  broken.mask = [] { return std::make_unique<MaskWithoutMemory>(); };
  std::vector<Answer> first = submit(batcher, well), second = submit(batcher, broken),
                      third = submit(batcher, well);
  run_out(batcher);
  const Heard heard = hear(second[0]);
  EXPECT_EQ(heard.end.reason, FinishReason::kError);
  EXPECT_EQ(heard.end.error, "out of memory");
  EXPECT_EQ(heard.ids.size(), 2u);
  for (std::vector<Answer>* others : {&first, &third})
    EXPECT_EQ(hear(others->front()).ids, rig.ids_alone(well));
  EXPECT_EQ(batcher.stats().finished[static_cast<size_t>(FinishReason::kError)], 1);
}

// Looking where it broke takes room; where others have all of it, what happened is said without the place.
TEST(Faults, AFullCacheDoesNotHideWhatBroke) {
  KvCacheOptions cache = cache_of(2);
  cache.pages = 2 * 4;
  EngineRig rig(R"({"name": "dense"})", cache);
  Rng rng(4);
  const std::vector<int32_t> tokens = random_prompt(rng, 128);
  Feeder& feeder = rig.many.feeder;
  const ArenaScope scope(rig.rig.ctx);
  feeder.feed(0, tokens, LogitsFor::kNone);
  feeder.fork(0, 1, 128);
  try {
    fail_where_it_broke("it broke", feeder, 1, tokens);
  } catch (const CacheFull& error) {
    FAIL() << error.what();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "it broke");
  }
}

// Where passes leave it to their caller to settle the cache, as on a device that would have to be waited for,
// the engine does it when room is wanted: no answer has to make room for what nobody holds.
TEST(Faults, PagesThatNobodyUsesComeBackWhenRoomIsWanted) {
  for (const char* json :
       {R"({"name": "random", "skipped_kv": "hide"})", R"({"name": "gate_skip", "skipped_kv": "hide"})",
        R"({"name": "random", "skipped_kv": "copy"})"}) {
    int64_t preemptions[2];
    for (const bool every_pass : {true, false}) {
      KvCacheOptions cache = cache_of(4, 256);
      cache.pages = 4 * 9;
      EngineRig rig(json, cache, [] {
        ModelConfig config = tiny_config();
        config.context = 256;
        return config;
      }());
      rig.many.feeder.settle_every_pass(every_pass);
      BatcherOptions options = roomy(48);
      options.budgets = &*rig.budgets;
      Batcher batcher(rig.many.feeder, options);
      Rng rng(8);
      std::vector<Request> requests;
      std::vector<Answer> answers;
      for (int i = 0; i < 8; ++i) {
        Request request = request_of(random_prompt(rng, 60 + rng.below(40)), 60);
        request.ignore_eos = true;
        request.budget = 0.6f;
        requests.push_back(request);
        for (Answer& answer : submit(batcher, request)) answers.push_back(std::move(answer));
      }
      run_out(batcher);
      for (size_t i = 0; i < requests.size(); ++i)
        ASSERT_EQ(hear(answers[i]).ids, rig.ids_alone(requests[i])) << json << ", request " << i;
      preemptions[every_pass] = batcher.stats().preemptions;
    }
    EXPECT_EQ(preemptions[false], preemptions[true]) << json;
  }
}

TEST(Faults, BudgetsOutOfRange) {
  EngineRig rig(R"({"name": "gate_skip"})");
  BatcherOptions options = roomy();
  options.budgets = &*rig.budgets;
  Batcher batcher(rig.many.feeder, options);
  const auto refusal = [&](float budget) {
    Request request = request_of({1, 2, 3}, 5);
    request.budget = budget;
    try {
      batcher.prepare(request);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal(0.4f), "");
  EXPECT_EQ(refusal(1.0f), "");
  EXPECT_EQ(refusal(0.3f), "a budget of 0.3 is below the smallest of the calibration table, 0.4");
  for (const float budget : {0.0f, -1.0f, 1.0001f, NAN, INFINITY, -INFINITY})
    EXPECT_NE(refusal(budget).find("a budget must be above 0 and at most 1, got "), std::string::npos)
        << budget;
  rig.table.points.erase(rig.table.points.begin());  // as Skip-Middle's, which was trained to 0.8
  rig.budgets.emplace(rig.table);
  EXPECT_EQ(refusal(0.9f), "a budget of 0.9 is above the largest of the calibration table, 0.8");
}

}  // namespace
}  // namespace fathom
