// A small random model under a method, as the tests of this folder use it: cached passes, fresh passes,
// training passes, and what was decided in them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/kv_cache.h"
#include "model/load.h"
#include "model/transformer.h"
#include "model/weights.h"
#include "ops/rows/read_scalars.h"
#include "ops/rows/steer_rows.h"
#include "skip/method_policy.h"
#include "tensor/arena.h"
#include "tensor/memory.h"
#include "tensor/tape.h"

namespace fathom {

enum class Shaped : uint8_t { kLlama, kGemma, kSandwich };

inline ModelConfig tiny_config(Shaped shaped = Shaped::kLlama) {
  ModelConfig c;
  c.architecture = "llama";
  c.width = 32;
  c.layers = 4;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 8;
  c.ffn_width = 40;
  c.vocab = 48;
  c.context = 128;
  c.norm_eps = 1e-5f;
  c.attention_scale = 1.0f / std::sqrt(8.0f);
  c.windows.assign(4, 0);
  if (shaped != Shaped::kLlama) c.norm_placement = NormPlacement::kSandwich;
  if (shaped == Shaped::kSandwich) c.embedding_norm = true;
  if (shaped == Shaped::kGemma) {
    c.norm_weight_offset = 1.0f;
    c.qk_norm = QkNorm::kPerHead;
    c.tied = true;
    c.activation = Activation::kGeluTanh;
    c.embedding_scale = 1.5f;
    c.attention_soft_cap = 20.0f;
    c.logit_soft_cap = 10.0f;
    c.windows = {5, 0, 5, 0};
    c.has_local_rope = true;
    c.rope.theta = 1e6f;
  }
  return c;
}

inline Tensor host_tensor(const std::vector<float>& values, const Shape& shape) {
  Tensor out = Tensor::owned(Device::kCpu, DType::kF32, shape);
  std::memcpy(out.raw(), values.data(), values.size() * sizeof(float));
  return out;
}

inline void add_noise(Tensor& tensor, float std, uint64_t seed, uint32_t stream) {
  Rng rng(seed, {stream, 0, 0});
  for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data<float>()[i] += std * rng.normal();
}

inline Model tiny_model(const ModelConfig& config, uint64_t seed = 1) {
  check_config(config, "tiny");
  Model model;
  model.config = config;
  uint32_t index = 0;
  for (const WeightSpec& spec : weight_specs(model.config, model.weights)) {
    *spec.tensor = Tensor::owned(Device::kCpu, DType::kF32, spec.shape);
    if (spec.norm)
      std::fill_n(spec.tensor->data<float>(), spec.tensor->numel(), 1.0f - config.norm_weight_offset);
    add_noise(*spec.tensor, spec.matrix ? (index == 0 ? 0.7f : 0.25f) : 0.1f, seed, index);
    ++index;
  }
  if (config.tied) model.weights.output = model.weights.embedding;
  const auto frequencies = [&](const RopeConfig& rope) {
    const std::vector<float> f = inverse_frequencies(rope, config.head_dim);
    return host_tensor(f, {static_cast<int64_t>(f.size())});
  };
  model.weights.frequencies = frequencies(config.rope);
  model.weights.local_frequencies = frequencies(config.local_rope);
  return model;
}

using Rows = std::vector<BatchRow>;

// Whole sequences of random tokens, one after another; keys differ, slots are 0, 1, …
inline Rows random_rows(const std::vector<int>& lengths, uint64_t seed = 5, int64_t vocab = 48) {
  Rows rows;
  Rng rng(seed);
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (int i = 0; i < lengths[s]; ++i)
      rows.push_back({static_cast<int32_t>(rng.below(static_cast<uint32_t>(vocab))), i,
                      static_cast<int32_t>(s), true, static_cast<int32_t>(100 + s)});
  }
  return rows;
}

// What a pass gave, on the host. Decisions and scores are copied as they are made: the arena takes them back.
struct Seen {
  std::vector<float> logits;
  std::vector<std::vector<uint8_t>> kept;  // (2L, rows)
  std::vector<std::vector<float>> scores;  // (2L, rows), empty where there is none
  std::vector<std::vector<float>> gates;   // (2L, elements of the gate), empty where there is none
  std::vector<SkippedKv> skipped_kv;       // (2L)
  Work work;
};

class Watch final : public ForwardingPolicy {
 public:
  Watch(const SkipPolicy& inner, Seen& seen) : ForwardingPolicy(inner), seen_(seen) {}
  Decision decide(Context& ctx, const UnitInput& input, PolicyState& state) const override {
    const Decision decision = ForwardingPolicy::decide(ctx, input, state);
    const auto rows = static_cast<size_t>(input.h.dim(0));
    std::vector<uint8_t> kept(rows, decision.kept.is_all() ? 1 : 0);
    if (decision.kept.ids()) {
      const Tensor ids = decision.kept.ids().to(ctx, Device::kCpu),
                   count = decision.kept.count().to(ctx, Device::kCpu);
      for (int32_t i = 0; i < count.data<int32_t>()[0]; ++i)
        kept[static_cast<size_t>(ids.data<int32_t>()[i])] = 1;
    }
    std::vector<float> scores;
    if (decision.score) {
      scores.resize(rows);
      copy_to_host(ctx, decision.score, scores);
    }
    seen_.kept.push_back(kept);
    seen_.scores.push_back(scores);
    std::vector<float>& gates = seen_.gates.emplace_back();
    if (decision.gate) {
      gates.resize(static_cast<size_t>(decision.gate.numel()));
      copy_to_host(ctx, decision.gate, gates);
    }
    seen_.skipped_kv.push_back(decision.skipped_kv);
    return decision;
  }

 private:
  Seen& seen_;
};

// Row sets that outlive any scope.
inline RowSet owned_rows(const std::vector<uint8_t>& kept) {
  const auto rows = static_cast<int64_t>(kept.size());
  Tensor ids = Tensor::owned(Device::kCpu, DType::kI32, {rows}),
         count = Tensor::owned(Device::kCpu, DType::kI32, {1});
  int32_t& n = count.data<int32_t>()[0];
  for (int32_t r = 0; r < rows; ++r) {
    if (kept[static_cast<size_t>(r)]) ids.data<int32_t>()[n++] = r;
  }
  return RowSet::some(ids, count);
}
inline std::vector<RowSet> owned_rows(const std::vector<std::vector<uint8_t>>& kept) {
  std::vector<RowSet> sets;
  for (const auto& each : kept) sets.push_back(owned_rows(each));
  return sets;
}

struct PassOptions {
  bool masked = false, training = false, batch_quantile = false;
  const std::vector<RowSet>* replay = nullptr;
  float share = 1;
  int64_t step = 0;
};

struct Rig {
  Context ctx;
  Model model;
  std::unique_ptr<MethodPolicy> policy;
  std::vector<float> thresholds;  // of every sequence; none: the method's own rule

  // Method tensors start as the method says plus noise, so that rows differ.
  explicit Rig(const std::string& json, Shaped shaped = Shaped::kLlama, float noise = 0.3f, int threads = 1)
      : Rig(json, tiny_config(shaped), noise, threads) {}
  Rig(const std::string& json, const ModelConfig& config, float noise = 0.3f, int threads = 1,
      Device device = Device::kCpu)
      : ctx({.device = device, .threads = threads}), model(tiny_model(config)) {
    move_model(ctx, model);
    policy = MethodPolicy::from_json(json, "test");
    policy->check(model.config);
    policy->initialise(model.config, 7);
    uint32_t stream = 1000;
    for (const MethodParameter& parameter : policy->parameters(model.config))
      add_noise(*parameter.tensor, noise, 11, stream++);
    const ArenaScope scope(ctx);
    const std::vector<Batch> batches{make_batch(ctx, random_rows({12, 9}, 77))};
    policy->prepare(ctx, model, batches);
    for (const MethodParameter& parameter : policy->parameters(model.config))
      *parameter.tensor = parameter.tensor->to(ctx, device);
  }

  std::unique_ptr<SkipState> make_state(int64_t sequences, const PassOptions& options = {}) {
    std::unique_ptr<SkipState> state(
        static_cast<SkipState*>(policy->make_state(ctx, model.config, sequences).release()));
    set(*state, options);
    if (thresholds.empty() || options.training) return state;
    for (int32_t s = 0; s < sequences; ++s) state->set_thresholds(ctx, s, thresholds);
    return state;
  }
  void set(SkipState& state, const PassOptions& options) const {
    state.pass.masked = options.masked;
    state.training.on = options.training;
    state.pass.batch_quantile = options.batch_quantile;
    state.pass.replay = options.replay;
    state.training.share = options.share;
    state.training.step = options.step;
    state.training.seed = 3;
  }

  // A pass over fresh sequences, without a tape.
  Seen fresh(const Rows& rows, const PassOptions& options = {}) {
    const ArenaScope scope(ctx);
    const Batch batch = make_batch(ctx, rows);
    const std::unique_ptr<SkipState> state = make_state(batch.sequences, options);
    Seen seen;
    const Work before = ctx.counters().total();
    const Tensor logits = forward(ctx, model, batch, FreshPass{}, Watch(*policy, seen), *state);
    seen.work = ctx.counters().total() - before;
    seen.logits.resize(static_cast<size_t>(logits.numel()));
    copy_to_host(ctx, logits, seen.logits);
    return seen;
  }

  // Thresholds at which about that share of each unit's rows runs.
  void calibrate(float kept) {
    const Seen seen = fresh(random_rows({30, 25}, 99));
    thresholds.clear();
    for (std::vector<float> scores : seen.scores) {
      std::sort(scores.begin(), scores.end());
      const auto at = static_cast<size_t>((1 - kept) * static_cast<float>(scores.size()));
      if (scores.empty()) {
        thresholds.push_back(-INFINITY);
      } else {  // below the highest: where many have that one, not all of them skip
        thresholds.push_back(
            std::min(scores[std::min(at, scores.size() - 1)], std::nextafter(scores.back(), -1.0f)));
      }
    }
  }

  // And steered: every unit toward that share of its rows, its threshold by as much as its scores are apart.
  void calibrate_steered(float kept) {
    calibrate(kept);
    const Seen seen = fresh(random_rows({30, 25}, 99));
    const size_t units = thresholds.size();
    thresholds.resize(static_cast<size_t>(kSteeringParts) * units);
    for (size_t unit = 0; unit < units; ++unit) {
      std::vector<float> scores = seen.scores[unit];
      std::erase_if(scores, [](float score) { return !std::isfinite(score); });
      const auto [low, high] = std::minmax_element(scores.begin(), scores.end());
      const float slope = scores.empty() ? 0.0f : 2 * (*high - *low);
      thresholds[units + unit] = scores.empty() ? -1.0f : kept;
      thresholds[2 * units + unit] = thresholds[3 * units + unit] = slope;
      thresholds[4 * units + unit] = unit % 2 ? 2 : -1;
    }
  }
};

// What the method's adjust() makes of the gradients of its parameters.
inline void adjust_gradients(Rig& rig, std::span<std::vector<float>> gradients) {
  const ArenaScope scope(rig.ctx);
  std::vector<Tensor> tensors;
  for (const std::vector<float>& each : gradients)
    tensors.push_back(Tensor::from(rig.ctx, each, {static_cast<int64_t>(each.size())}));
  rig.policy->adjust(rig.ctx, rig.model.config, tensors);
  for (size_t i = 0; i < gradients.size(); ++i) copy_to_host(rig.ctx, tensors[i], gradients[i]);
}

// What follows the optimiser's step.
inline void after_step(Rig& rig) {
  const ArenaScope scope(rig.ctx);
  std::vector<float> figures;
  for (const Scalar& figure : read_scalars(rig.ctx, rig.policy->figures(rig.ctx)))
    figures.push_back(figure.as_float());
  rig.policy->after_step(figures);
}

// Sequences in a cache.
class TinyRun {
 public:
  TinyRun(Rig& rig, int64_t sequences, DType type = DType::kF32, const PassOptions& options = {})
      : rig_(rig),
        cache_(
            rig.ctx, rig.model.config,
            {.sequences = sequences, .k_type = type, .v_type = type, .key_bias = rig.policy->has_key_bias()}),
        state_(rig.make_state(sequences, options)) {}

  Seen pass(const Rows& rows) {
    Context& ctx = rig_.ctx;
    const ArenaScope scope(ctx);
    std::map<int32_t, int64_t> counts;
    for (const BatchRow& row : rows) ++counts[row.sequence];
    for (const auto& [sequence, count] : counts) cache_.reserve(ctx, sequence, count);
    Seen seen;
    const Work before = ctx.counters().total();
    const Tensor logits =
        forward(ctx, rig_.model, make_batch(ctx, rows), cache_, Watch(*rig_.policy, seen), *state_);
    seen.work = ctx.counters().total() - before;
    if (logits) {
      seen.logits.resize(static_cast<size_t>(logits.numel()));
      copy_to_host(ctx, logits, seen.logits);
    }
    for (const auto& [sequence, count] : counts) {
      if (settles) cache_.settle(ctx, sequence, state_->settle(ctx, sequence, cache_.rows(sequence)));
    }
    return seen;
  }
  int64_t truncate(int32_t sequence, int64_t position) {
    const int64_t held = state_->truncate(rig_.ctx, sequence, position);
    cache_.truncate(rig_.ctx, sequence, held);
    return held;
  }
  int64_t fork(int32_t from, int32_t to, int64_t position) {
    const int64_t held = state_->fork(rig_.ctx, from, to, position);
    cache_.fork(rig_.ctx, from, to, held);
    return held;
  }
  KvCache& cache() { return cache_; }
  SkipState& state() { return *state_; }

  bool settles = true;

 private:
  Rig& rig_;
  KvCache cache_;
  std::unique_ptr<SkipState> state_;
};

// One value per (sequence, position), in an order that passes do not change.
using ByRow = std::map<std::pair<int32_t, int32_t>, std::vector<float>>;

inline void collect(const Rows& rows, const Seen& seen, ByRow& logits, ByRow& decisions) {
  const size_t vocab = seen.logits.size() / std::max<size_t>(1, rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::pair at{rows[r].key, rows[r].position};
    const auto begin = seen.logits.begin() + static_cast<int64_t>(r * vocab);
    logits[at].assign(begin, begin + static_cast<int64_t>(vocab));
    for (const auto& unit : seen.kept) decisions[at].push_back(unit[r]);
  }
}

inline double skipped_share(const Seen& seen) {
  double skipped = 0, all = 0;
  for (const auto& unit : seen.kept) {
    for (const uint8_t kept : unit) skipped += kept ? 0 : 1;
    all += static_cast<double>(unit.size());
  }
  return skipped / all;
}

}  // namespace fathom
