// A small random model under a method, with a cache of many sequences for an engine and another one for the
// same requests alone.
#pragma once

#include <gtest/gtest.h>

#include "infer/batcher.h"
#include "infer/plain_answer_test.h"
#include "infer/score.h"
#include "skip/tiny_model_test.h"

namespace fathom {

// What came out of an answer.
struct Heard {
  std::vector<int32_t> ids;  // without the token that ended it
  bool ended_by_token = false;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogProb>> top;
  std::vector<double> depth;
  std::string text;
  AnswerEnd end;
  std::shared_ptr<const LogProbs> prompt;
};

inline Heard hear(Answer& answer) {
  Heard heard;
  while (true) {
    int waits = 0;  // of a second each: a process that was stopped meanwhile has waited once
    while (waits < 60 && !answer.ready_within(std::chrono::seconds(1))) ++waits;
    if (waits == 60) {
      ADD_FAILURE() << "nothing more comes, and no end";
      return heard;
    }
    const std::optional<Token> token = answer.next();
    if (!token) break;
    heard.text += token->text;
    heard.ended_by_token |= token->ends;
    if (token->ends) continue;
    heard.ids.push_back(token->id);
    heard.logprobs.push_back(token->logprob);
    heard.top.push_back(token->top);
    heard.depth.push_back(token->depth);
  }
  heard.end = answer.end();
  heard.text += heard.end.text;
  heard.prompt = answer.prompt_log_probs();
  return heard;
}

// What the tests count and hold up.
class CountingPolicy final : public ForwardingPolicy {
 public:
  using ForwardingPolicy::ForwardingPolicy;
  void begin(Context& ctx, const Model& model, const Batch& batch, PolicyState& state) const override {
    ++passes;
    rows.push_back(batch.rows());
    ForwardingPolicy::begin(ctx, model, batch, state);
  }
  mutable int64_t passes = 0;
  mutable std::vector<int64_t> rows;
};

// A cache, a state and a feeder on the rig's model, whose sequences can speculate.
struct Feeding {
  KvCache cache;
  SpeculativePolicy speculative;
  CountingPolicy policy;
  std::unique_ptr<PolicyState> base;
  SkipState& state;
  Feeder feeder;
  Feeding(Rig& rig, KvCacheOptions options)
      : cache(rig.ctx, rig.model.config, with_bias(options, rig)),
        speculative(*rig.policy),
        policy(speculative),
        base(policy.make_state(rig.ctx, rig.model.config, options.sequences)),
        state(*skip_state_of(*base)),
        feeder(rig.ctx, rig.model, cache, policy, *base) {
    rig.set(state, {});
  }

 private:
  static KvCacheOptions with_bias(KvCacheOptions options, const Rig& rig) {
    options.key_bias = rig.policy->has_key_bias();
    return options;
  }
};

inline KvCacheOptions cache_of(int64_t sequences, int64_t context = 128) {
  return {.sequences = sequences, .context = context, .k_type = DType::kF32, .v_type = DType::kF32};
}

struct EngineRig {
  Rig rig;
  Feeding many, alone;
  Calibration table;  // 1, 0.8, 0.6 and 0.4 are shares of rows that run each unit, not exact budgets
  std::optional<Budgets> budgets;  // the same, for an engine
  const std::vector<int32_t> harm_order{5, 2, 7, 0, 3, 4, 6, 1};

  explicit EngineRig(const std::string& json = R"({"name": "dense"})", int64_t sequences = 8)
      : EngineRig(json, cache_of(sequences)) {}
  EngineRig(const std::string& json, const KvCacheOptions& cache, const ModelConfig& config = tiny_config(),
            Device device = Device::kCpu)
      : rig(json, config, 0.3f, 1, device), many(rig, cache), alone(rig, one_of(cache)) {
    calibrate();
  }

  // Anew, after the weights have changed.
  void calibrate() {
    table.points.clear();
    for (const float budget : {1.0f, 0.8f, 0.6f, 0.4f}) {
      rig.calibrate(budget);
      if (budget == 1) rig.thresholds.assign(rig.thresholds.size(), -INFINITY);
      table.points.push_back({.budget = budget, .achieved = budget, .thresholds = rig.thresholds});
    }
    rig.thresholds.clear();
    budgets.emplace(table);
  }

  // An engine's options for requests with a budget and with drafts of every kind.
  BatcherOptions with_tables(BatcherOptions options) const {
    options.budgets = &*budgets;
    options.harm_order = harm_order;
    return options;
  }

  // The same answer, with nothing else around.
  PlainAnswer generate_alone(const Request& request, int64_t index = 0) {
    AnswerOptions options = request;
    options.sampler.seed = answer_seed(request.sampler.seed, index);
    if (!request.ignore_eos) {
      for (const int32_t id : end_token_ids(rig.model)) options.end_ids.push_back(id);
    }
    std::optional<Speculation> speculation;
    if (request.speculate)
      speculation = make_speculation(rig.model, {&*budgets, harm_order}, *request.speculate,
                                     double{request.budget.value_or(1)});
    set_budget(request);
    return PlainWriter(alone.feeder, options, request.prompt, speculation ? &*speculation : nullptr).run();
  }
  std::vector<int32_t> ids_alone(const Request& request, int64_t index = 0) {
    return generate_alone(request, index).ids;
  }
  // Log-probabilities of the prompt and the answer, token by token as decode gave them where that matters.
  ScoreResult score_alone(const Request& request, const std::vector<int32_t>& ids, int64_t top = 0) {
    std::vector<int32_t> text = request.prompt;
    text.insert(text.end(), ids.begin(), ids.end());
    ScoreOptions options;
    options.top = top;
    set_budget(request);
    return score(alone.feeder, text, options);
  }

 private:
  // As large and of the same types, for one sequence and without bounds.
  static KvCacheOptions one_of(KvCacheOptions cache) {
    cache.sequences = 1;
    cache.pages = 0;
    return cache;
  }
  void set_budget(const Request& request) {
    alone.state.clear_thresholds(rig.ctx, 0);
    if (request.budget) alone.state.set_thresholds(rig.ctx, 0, table.thresholds(*request.budget));
  }
};

inline std::vector<int32_t> random_prompt(Rng& rng, int64_t length) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& id : prompt) id = static_cast<int32_t>(rng.below(48));
  return prompt;
}

// Of every kind: greedy and sampled, short and long, with and without each option, at several budgets.
inline Request random_request(Rng& rng) {
  Request request;
  request.prompt = random_prompt(rng, 1 + rng.below(rng.below(4) == 0 ? 90 : 12));
  request.max_tokens = 1 + rng.below(14);
  request.sampler.temperature = rng.below(3) == 0 ? 0.0f : 1.2f;
  request.sampler.seed = rng.next_u32();
  request.sampler.repeat_penalty = rng.below(3) == 0 ? 1.3f : 1.0f;
  if (rng.below(3) == 0) request.sampler.logit_bias = {{static_cast<int32_t>(rng.below(48)), 3.0f}};
  if (rng.below(3) == 0) request.end_ids = {static_cast<int32_t>(rng.below(48))};
  if (rng.below(3) == 0) request.min_tokens = rng.below(static_cast<uint32_t>(request.max_tokens));
  request.priority = rng.below(3);
  request.log_probs = rng.below(2) == 0 ? 3 : 0;
  request.score_prompt = rng.below(4) == 0;
  if (rng.below(3) > 0) request.budget = rng.below(2) == 0 ? 0.6f : rng.below(2) == 0 ? 0.7f : 1.0f;
  return request;
}

// Drafts of every kind and length, as far as the output's budget allows.
inline DraftOptions random_drafts(Rng& rng, const Request& request) {
  DraftOptions drafts;
  drafts.drafts = rng.below(8);
  const uint32_t kind = rng.below(5);
  if (kind < 4) drafts.kind = static_cast<DraftKind>(kind);
  if (kind < 3 && rng.below(3) == 0) drafts.vocab = 1 + rng.below(48);
  drafts.budget = request.budget.value_or(1) <= 0.6f ? 0.45 : rng.below(2) == 0 ? 0.5 : 0.65;
  if (drafts.kind == DraftKind::kExit) drafts.budget = 0.7;
  return drafts;
}

inline std::vector<Answer> submit(Batcher& batcher, const Request& request) {
  std::vector<Answer> answers;
  for (auto& lane : batcher.prepare(request)) {
    answers.push_back(make_answer(lane->out));
    batcher.add(std::move(lane));
  }
  return answers;
}

// Queues that take whole answers: nothing is read while a Batcher steps.
inline BatcherOptions roomy(int64_t rows = 64) {
  BatcherOptions options;
  options.rows = rows;
  options.tokens_ahead = 1000;
  return options;
}

// Greedy.
inline Request request_of(std::vector<int32_t> prompt, int64_t tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = tokens;
  request.sampler.temperature = 0;
  request.log_probs = 0;
  return request;
}

inline void run_out(Batcher& batcher) {
  while (batcher.step()) {
  }
  ASSERT_TRUE(batcher.idle());
}

// Has a token come that is not read yet, or the end?
inline bool ready(const Answer& answer) {
  return answer.ready_within(std::chrono::milliseconds(0));
}

}  // namespace fathom
