// A small model whose sequences can draft, as the tests of speculation use it.
#pragma once

#include <limits>
#include <map>
#include <set>

#include "infer/plain_answer_test.h"
#include "skip/tiny_model_test.h"

namespace fathom {

inline constexpr int64_t kTinyUnits = 8;  // 4 layers

inline DraftRule dropping(const std::vector<int64_t>& units) {
  DraftRule rule;
  rule.dropped.assign(kTinyUnits, 0);
  for (const int64_t unit : units) rule.dropped[static_cast<size_t>(unit)] = 1;
  return rule;
}

inline DraftRule leaving_after(int64_t layers) {
  std::vector<int64_t> units;
  for (int64_t unit = 2 * layers; unit < kTinyUnits; ++unit) units.push_back(unit);
  return dropping(units);
}

inline DraftRule at_thresholds(Rig& rig, float kept) {
  const std::vector<float> own = rig.thresholds;
  rig.calibrate(kept);
  DraftRule rule;
  rule.thresholds = rig.thresholds;
  rig.thresholds = own;
  return rule;
}

inline std::vector<int32_t> random_tokens(uint64_t seed, int length, int64_t vocab = 48) {
  std::vector<int32_t> tokens;
  for (const BatchRow& row : random_rows({length}, seed, vocab)) tokens.push_back(row.token);
  return tokens;
}

struct Speculating {
  Rig& rig;
  DraftRule rule;
  SpeculativePolicy policy;
  std::unique_ptr<PolicyState> base;
  SpeculativeState& state;
  KvCache cache;
  Feeder feeder;

  Speculating(Rig& of, DraftRule drafts, DType type = DType::kF32, int64_t sequences = 1)
      : rig(of),
        rule(std::move(drafts)),
        policy(*of.policy),
        base(policy.make_state(of.ctx, of.model.config, sequences)),
        state(static_cast<SpeculativeState&>(*base)),
        cache(of.ctx, of.model.config,
              {.sequences = sequences,
               .context = 128,
               .k_type = type,
               .v_type = type,
               .key_bias = policy.has_key_bias()}),
        feeder(of.ctx, of.model, cache, policy, state) {
    rig.set(static_cast<SkipState&>(state.inner()), {});
    for (int32_t s = 0; s < sequences && !rig.thresholds.empty(); ++s)
      state.set_thresholds(rig.ctx, s, rig.thresholds);
  }

  // `drafts`: of each round; 0: plainly
  PlainAnswer generate(const std::vector<int32_t>& prompt, const AnswerOptions& options, int64_t drafts = 0) {
    const Speculation speculation{rule, DraftLength::fixed(drafts)};
    return PlainWriter(feeder, options, prompt, drafts > 0 ? &speculation : nullptr).run();
  }

  std::vector<float> logits_of(const Tensor& rows) const {
    std::vector<float> logits(static_cast<size_t>(rows.numel()));
    copy_to_host(rig.ctx, rows, logits);
    return logits;
  }

  // The next tokens, one after another, as plain decoding feeds them. -> f32 (tokens, vocab)
  std::vector<float> plain(std::span<const int32_t> tokens) {
    std::vector<float> all;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const ArenaScope scope(rig.ctx);
      const std::vector<float> row = logits_of(feeder.feed(0, tokens.subspan(i, 1), LogitsFor::kLast));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  // All but the last of them as drafts, whatever the draft would say, and then all in one verifying pass.
  template <class Between>
  std::vector<float> round(std::span<const int32_t> tokens, Between&& between) {
    state.draft(rig.ctx, cache, 0, rule);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const ArenaScope scope(rig.ctx);
      feeder.feed({0, tokens.subspan(i, 1), LogitsFor::kLast, true});
    }
    between();
    state.verify(rig.ctx, cache, 0);
    const ArenaScope scope(rig.ctx);
    const std::vector<float> logits =
        logits_of(feeder.feed({0, tokens, LogitsFor::kAll, true, std::ssize(tokens) - 1}));
    state.finish(rig.ctx, 0);
    feeder.settle(0);
    return logits;
  }

  // NaN wherever a draft left what the verifying policy would not have left.
  void poison(int64_t first) {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    const std::span<const int32_t> starts = state.starts(0);
    std::set<int32_t> right, wrong;  // slots
    for (int64_t layer = 0; layer < cache.layers(); ++layer) {
      KvView& view = cache.layer(layer);
      for (int32_t i = 0; i < view.lengths.data<int32_t>()[0]; ++i) {
        const int64_t row = view.positions.data<int32_t>()[i] - first;
        const bool valid = row < 0 || layer < starts[static_cast<size_t>(row)];
        (valid ? right : wrong).insert(view.entries.data<int32_t>()[i]);
      }
    }
    KvView& view = cache.layer(0);
    const int64_t width = view.k.dim(1) * view.k.dim(2);
    for (const int32_t slot : wrong) {
      if (right.count(slot)) continue;  // a copy of a row below, which is right there
      std::fill_n(view.k.data<float>() + slot * width, width, kNan);
      std::fill_n(view.v.data<float>() + slot * width, width, kNan);
    }
    Tensor saved = state.saved(0);
    for (int64_t row = 0; row < kMostDrafts; ++row) {
      const bool used = row < std::ssize(starts) && starts[static_cast<size_t>(row)] > 0;
      if (!used) std::fill_n(saved.data<float>() + row * saved.dim(1), saved.dim(1), kNan);
    }
  }

  // Positions of the entries of each layer.
  std::vector<std::vector<int32_t>> entries() {
    std::vector<std::vector<int32_t>> all;
    for (int64_t layer = 0; layer < cache.layers(); ++layer) {
      const KvView& view = cache.layer(layer);
      const int32_t* positions = view.positions.data<int32_t>();
      all.emplace_back(positions, positions + view.lengths.data<int32_t>()[0]);
    }
    return all;
  }
};

struct Verifier {
  const char* name;
  const char* method;  // JSON
  float kept;          // of each unit's rows; 1: the method's own rule
  bool scores = true;  // rows can be kept by a threshold
  bool steered = false;
};
inline void calibrate(Rig& rig, const Verifier& verifier) {
  if (verifier.kept == 1) return;
  verifier.steered ? rig.calibrate_steered(verifier.kept) : rig.calibrate(verifier.kept);
}
// Steering looks back on whole blocks of rows: its texts begin with more of them.
inline size_t prompt_of(const Verifier& verifier) {
  return verifier.steered ? 54 : 9;
}

inline const std::vector<Verifier> kVerifiers{
    {"dense", R"({"name": "dense"})", 1, false},
    {"gates", R"({"name": "gate_skip"})", 1},
    {"gates, project", R"({"name": "gate_skip"})", 0.7f},
    {"gates, copy", R"({"name": "gate_skip", "skipped_kv": "copy"})", 0.7f},
    {"gates, hide", R"({"name": "gate_skip", "skipped_kv": "hide"})", 0.7f},
    {"skip_layer", R"({"name": "skip_layer", "router": "sigmoid"})", 1},
    {"mixture_of_depths", R"({"name": "mixture_of_depths"})", 0.7f},
    {"mind_skip, tokens", R"({"name": "mind_skip", "level": "token", "layers": [1, 2]})", 0.7f},
    {"mind_skip, prefix", R"({"name": "mind_skip", "pool": "prefix:12", "layers": [1, 2]})", 1},
    {"skip_middle", R"({"name": "skip_middle"})", 0.7f},
    {"calm", R"({"name": "calm", "confidence": "similarity"})", 0.7f},
    {"priced", R"({"name": "priced"})", 0.7f},
    {"nested", R"({"name": "nested", "cost_context": 16})", 0.7f},
    {"nested, centred", R"({"name": "nested", "cost_context": 16, "band": 0, "centre_block": 3})", 0.7f},
    {"random", R"({"name": "random"})", 1},
    {"gates, steered", R"({"name": "gate_skip"})", 0.6f, true, true},
    {"gates, copy, steered", R"({"name": "gate_skip", "skipped_kv": "copy"})", 0.6f, true, true},
    {"mixture_of_depths, steered", R"({"name": "mixture_of_depths"})", 0.6f, true, true},
    {"calm, steered", R"({"name": "calm", "confidence": "similarity"})", 0.7f, true, true},
};

// Drafts of every kind that the verifier allows.
inline std::vector<DraftRule> drafts_for(Rig& rig, const Verifier& verifier) {
  std::vector<DraftRule> rules{leaving_after(2), leaving_after(0), dropping({3}), dropping({2, 5}),
                               dropping({7})};
  if (!verifier.scores) return rules;
  rules.push_back(at_thresholds(rig, 0.5f));
  rules.push_back(at_thresholds(rig, 0.3f));
  rules.push_back(at_thresholds(rig, 0.5f));
  rules.back().dropped = dropping({6}).dropped;
  // Drops an attention that its thresholds would run, and that the verifier skips for some rows.
  rules.push_back(at_thresholds(rig, 0.95f));
  rules.back().dropped = dropping({6}).dropped;
  if (verifier.steered) {
    const std::vector<float> own = rig.thresholds;
    rig.calibrate_steered(0.4f);
    rules.push_back({{}, rig.thresholds});
    rig.thresholds = own;
  }
  return rules;
}

}  // namespace fathom
