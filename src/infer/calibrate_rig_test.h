// A method with routers on a small random model, text in which chance is small, and passes over it that are
// watched.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/flops.h"
#include "skip/tiny_model_test.h"
#include "tensor/arena.h"

namespace fathom {

inline constexpr int64_t kManyTokens = 480;

// A first block knows no more of a row than its token: with few of them scores would be few, too.
inline ModelConfig many_tokens() {
  ModelConfig config = tiny_config();
  config.vocab = kManyTokens;
  return config;
}

// A method whose routers differ between rows, on a small random model.
struct Routed {
  Context ctx{{.threads = 2}};
  Model model = tiny_model(many_tokens());
  std::unique_ptr<MethodPolicy> policy;

  explicit Routed(const std::string& json) : policy(MethodPolicy::from_json(json, "test")) {
    uint32_t stream = 900;
    for (const MethodParameter& parameter : policy->parameters(model.config))
      add_noise(*parameter.tensor, 0.2f, 3, stream++);
  }

  // β over these rows at these thresholds.
  float achieved(const Rows& rows, const std::vector<float>& thresholds) {
    const ArenaScope scope(ctx);
    const Batch batch = make_batch(ctx, rows);
    const auto base = policy->make_state(ctx, model.config, batch.sequences);
    auto& state = static_cast<SkipState&>(*base);
    for (int32_t s = 0; s < batch.sequences; ++s) state.set_thresholds(ctx, s, thresholds);
    const Work before = ctx.counters().total();
    forward(ctx, model, batch, FreshPass{}, *policy, state);
    const Work work = ctx.counters().total() - before;
    return static_cast<float>(work.madds - work.policy_madds) /
           static_cast<float>(dense_work(model.config, rows).block_madds);
  }
};

// Every token about as often as any other, in any order: what chance adds to a text of this length is not
// what is measured here.
inline Rows quiet_rows(int sequences, uint64_t seed, int length = 60) {
  Rows rows = random_rows(std::vector<int>(static_cast<size_t>(sequences), length), seed);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < rows.size(); ++i) tokens.push_back(static_cast<int32_t>(i % kManyTokens));
  Rng rng(seed);
  for (size_t i = rows.size(); i > 1; --i)
    std::swap(tokens[i - 1], tokens[rng.below(static_cast<uint32_t>(i))]);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].token = tokens[i];
    rows[i].wants_logits = false;
  }
  return rows;
}

// Which rows ran what in one pass, every sequence at the same thresholds.
inline Seen watched_pass(Routed& routed, const Rows& rows, std::span<const float> thresholds) {
  const ArenaScope scope(routed.ctx);
  const Batch batch = make_batch(routed.ctx, rows);
  const auto base = routed.policy->make_state(routed.ctx, routed.model.config, batch.sequences);
  auto& state = static_cast<SkipState&>(*base);
  for (int32_t s = 0; s < batch.sequences; ++s) state.set_thresholds(routed.ctx, s, thresholds);
  Seen seen;
  forward(routed.ctx, routed.model, batch, FreshPass{}, Watch(*routed.policy, seen), state);
  return seen;
}

// The first two rows of a sequence run, and decide once for all that follow.
inline constexpr const char* kMindSequence =
    R"({"name": "mind_skip", "pool": "prefix:2", "layers": [0, 1, 2, 3], "units": "block"})";

}  // namespace fathom
