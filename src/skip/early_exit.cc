// Early exits: once a row is sure of its answer it runs no deeper block; its keys and values there are
// projected from the state it left with. CALM may leave after every block, FREE after one of them; LayerSkip
// leaves after a fixed one and learns to by dropping deep rows and by losses at every depth.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "model/transformer.h"
#include "ops/loss/cross_entropy.h"
#include "ops/loss/output_loss.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/assign.h"
#include "ops/rows/concatenate.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/merge_rows.h"
#include "ops/rows/noise.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/quantile.h"
#include "ops/rows/reduce.h"
#include "ops/rows/row_confidence.h"
#include "ops/rows/scale_rows.h"
#include "ops/rows/select_rows.h"
#include "skip/methods.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

enum class Confidence : uint8_t { kSoftmax, kSimilarity };
std::span<const std::string_view> enum_names(Confidence) {
  static constexpr std::array<std::string_view, 2> kNames{"softmax", "similarity"};
  return kNames;
}

constexpr const char* kConfidenceHelp =
    "softmax: the LM head's top probability less the second; similarity: cosine of the states before and "
    "after the block";

struct ExitState final : MethodState {
  Tensor doubt;     // (rows): 1 − confidence after the last block that asked; −∞ of a row that has left
  Tensor gone;      // (rows): −∞
  Tensor previous;  // (rows, width): the state before the block
  std::vector<Tensor> states;  // training: after each block
};

// `slot` has h's values from now on, whatever happens to h: made in begin() where there is no tape.
void keep(Context& ctx, Tensor& slot, const Tensor& h) {
  if (ctx.tape() && !ctx.tape()->recording()) {
    slot = affine(ctx, h, 1.0f, 0.0f);
  } else {
    assign(ctx, slot, h);
  }
}

// The cross-entropy of an early state through the output matrix. Nothing of it is kept for the gradients: a
// vocabulary for each layer (on a GPU, a gradient of the output matrix) would be more than the rest of the
// model.
Tensor exit_loss(Context& ctx, const LossInput& input, const Tensor& h) {
  return recompute(ctx, [&ctx, &model = input.model, rows = input.batch.logit_rows, h,
                         targets = input.targets, weights = input.weights] {
    const OutputRows output = output_rows(ctx, model, gather_rows(ctx, h, rows));
    return std::vector<Tensor>{output_cross_entropy(ctx, output, targets, weights)};
  })[0];
}

class ExitMethod : public Method {
 public:
  MethodTraits traits() const override { return {.units = Units::kBlock}; }
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t) const override {
    return std::make_unique<ExitState>();
  }
  void begin(Context& ctx, const Model& model, const Batch& batch, SkipState& state) const override {
    auto& mine = state.of<ExitState>(*this);
    mine.states.assign(state.training ? static_cast<size_t>(model.config.layers) : 0, Tensor());
    if (ctx.tape()) return;  // keep() has its own memory there
    for (Tensor& slot : mine.states)
      slot = Tensor::empty(ctx, DType::kF32, {batch.rows(), model.config.width});
  }
  void after_block(UnitCall& call, const Decision&, Tensor& h) const override {
    if (call.state.training) keep(call.ctx, state_after(call.state, call.input.layer), h);
  }
  void observe(Context&, SkipState& state, int64_t) override { state.of<ExitState>(*this).states.clear(); }

 protected:
  Tensor& state_after(SkipState& state, int64_t layer) const {
    return state.of<ExitState>(*this).states[static_cast<size_t>(layer)];
  }
  // Σ weights[ℓ] · CE after block ℓ / Σ weights; a weight of 0 costs nothing.
  Tensor loss_over_layers(Context& ctx, const LossInput& input, std::span<const float> weights) const {
    std::vector<Tensor> terms;
    std::vector<float> shares;
    float total = 0;
    for (const float weight : weights) total += weight;
    // First, so that the gradients of the exits reach the output matrix before its own.
    const Tensor deepest = output_cross_entropy(ctx, input.output, input.targets, input.weights);
    for (size_t layer = 0; layer < weights.size(); ++layer) {
      if (weights[layer] == 0) continue;
      const bool last = layer + 1 == weights.size();
      terms.push_back(last ? deepest
                           : exit_loss(ctx, input, state_after(input.state, static_cast<int64_t>(layer))));
      shares.push_back(weights[layer] / total);
    }
    return weighted_sum(ctx, terms, shares);
  }
  bool recorded(SkipState& state) const { return !state.of<ExitState>(*this).states.empty(); }
};

// Rows that leave when they are sure: what CALM and FREE share.
class ConfidentExit : public ExitMethod {
 public:
  void begin(Context& ctx, const Model& model, const Batch& batch, SkipState& state) const override {
    ExitMethod::begin(ctx, model, batch, state);
    if (state.training) return;
    auto& mine = state.of<ExitState>(*this);
    const int64_t rows = batch.rows();
    const Tensor zeros = row_mask(ctx, RowSet::none(rows), rows);
    mine.gone = affine(ctx, zeros, 0.0f, -INFINITY);
    mine.doubt = affine(ctx, zeros, 0.0f, 2.0f);
    if (confidence() == Confidence::kSimilarity)
      mine.previous = Tensor::empty(ctx, DType::kF32, {rows, model.config.width});
  }

  // One confidence to leave with, the same after every block.
  float threshold_weight(const ModelConfig&, int64_t, SkippedKv) const override { return 1; }
  MethodTraits traits() const override {  // what it does not resume is its doubt
    return {.units = Units::kBlock,
            .resumes = false,
            .steers = true,
            .own_rule = "a row leaves where it is sure enough"};
  }

  void score(UnitCall& call, Decision& decision) const override {
    if (call.state.training || call.input.unit == Unit::kFfn) return;
    auto& mine = call.state.of<ExitState>(*this);
    if (confidence() == Confidence::kSimilarity &&
        may_leave_before(call.input.layer + 1, call.input.model.config))
      keep(call.ctx, mine.previous, call.input.h);
    decision.score = mine.doubt;
  }

  // Training runs every block: the losses at each depth teach.
  RowSet decide(UnitCall& call, const Decision& decision) const override {
    const int64_t layer = call.input.layer;
    if (call.state.training || layer < first_exit(call.input.model.config)) return RowSet::all(call.rows());
    if (!may_leave_before(layer, call.input.model.config))  // who has not left stays
      return select_rows(call.ctx, decision.score, Compare::kAbove, scalar(call.ctx, -INFINITY));
    return above_threshold(call, decision.score, 1.0f - threshold());
  }

  void after_block(UnitCall& call, const Decision& decision, Tensor& h) const override {
    if (call.state.training) return ExitMethod::after_block(call, decision, h);
    const PolicyWork deciding(call.ctx.counters());
    auto& mine = call.state.of<ExitState>(*this);
    Context& ctx = call.ctx;
    const Tensor fresh = may_leave_before(call.input.layer + 1, call.input.model.config)
                             ? doubt_of(call, decision.kept, h)
                             : gather_rows(ctx, mine.doubt, decision.kept);
    assign(ctx, mine.doubt, merge_rows(ctx, mine.gone, decision.kept, fresh));
  }

 protected:
  virtual Confidence confidence() const = 0;
  virtual float threshold() const = 0;
  virtual int64_t first_exit(const ModelConfig& config) const = 0;  // blocks that every row runs
  virtual bool may_leave_before(int64_t layer, const ModelConfig& config) const = 0;

  void check_threshold(const char* name) const {
    if (!(threshold() >= 0 && threshold() <= 1))
      fail("{}: threshold must be between 0 and 1, got {}", name, threshold());
  }

 private:
  // (capacity): of the rows that still run, for only they ask the LM head.
  Tensor doubt_of(UnitCall& call, const RowSet& kept, const Tensor& h) const {
    Context& ctx = call.ctx;
    const Tensor now = gather_rows(ctx, h, kept);
    if (kept.is_none()) return {};
    const Tensor sure =
        confidence() == Confidence::kSoftmax
            ? softmax_gap(ctx, output_logits(ctx, call.input.model, now))
            : cosine_rows(ctx, gather_rows(ctx, call.state.of<ExitState>(*this).previous, kept), now);
    return affine(ctx, sure, -1.0f, 1.0f);
  }
};

struct CalmConfig {
  Confidence confidence = Confidence::kSoftmax;
  float threshold = 0.9f;
  int64_t exit_every = 1;

  template <class V>
  void visit(V& v) {
    v("confidence", confidence, kConfidenceHelp);
    v("threshold", threshold, "a row leaves when its confidence is at least this");
    v("exit_every", exit_every, "blocks from one exit to the next");
  }
};

class Calm final : public ConfidentExit {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig& config) const override {
    check_threshold("calm");
    if (config_.exit_every < 1 || config_.exit_every >= config.layers)
      fail("calm: exit_every must be from 1 to {}, got {}", config.layers - 1, config_.exit_every);
  }
  // Σ ℓ · CE_ℓ / Σ ℓ, over the exits and the last block
  Tensor task_loss(Context& ctx, const LossInput& input) const override {
    if (!recorded(input.state)) return {};
    std::vector<float> weights;
    const ModelConfig& config = input.model.config;
    for (int64_t depth = 1; depth <= config.layers; ++depth)
      weights.push_back(may_leave_before(depth, config) || depth == config.layers ? static_cast<float>(depth)
                                                                                  : 0.0f);
    return loss_over_layers(ctx, input, weights);
  }

 protected:
  Confidence confidence() const override { return config_.confidence; }
  float threshold() const override { return config_.threshold; }
  int64_t first_exit(const ModelConfig&) const override { return config_.exit_every; }
  bool may_leave_before(int64_t layer, const ModelConfig& config) const override {
    return layer > 0 && layer < config.layers && layer % config_.exit_every == 0;
  }

 private:
  CalmConfig config_;
};

// numbers: f32 (1) each -> f32 (numbers): 1 for the least, the first of equal ones, else 0.
Tensor first_least(Context& ctx, std::span<const Tensor> numbers) {
  const Tensor less = affine(ctx, concatenate(ctx, numbers), -1.0f, 0.0f);
  const std::vector<int32_t> together(numbers.size(), 0);
  return top_share_by_sequence(ctx, less, Tensor::from(ctx, together, less.shape()),
                               1.0f / static_cast<float>(numbers.size()));
}

struct FreeConfig {
  Confidence confidence = Confidence::kSoftmax;
  float threshold = 0.9f;
  int64_t exit_layer = 0;
  float state_weight = 1.0f;

  template <class V>
  void visit(V& v) {
    v("confidence", confidence, kConfidenceHelp);
    v("threshold", threshold, "a row leaves when its confidence is at least this");
    v("exit_layer", exit_layer, "blocks before the exit; 0: three eighths of them (6 of 16)");
    v("state_weight", state_weight, "of the squared distance of the shallow state to the nearest deep one");
  }
};

class Free final : public ConfidentExit {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig& config) const override {
    check_threshold("free");
    if (config_.exit_layer < 0 || config_.exit_layer >= config.layers)
      fail("free: exit_layer must be from 1 to {} (0: three eighths of the layers), got {}",
           config.layers - 1, config_.exit_layer);
  }
  // CE shallow + CE deep + the shallow state's distance to the nearest deep one. The deep states are the
  // target: no gradient goes to them.
  Tensor task_loss(Context& ctx, const LossInput& input) const override {
    const int64_t exit = first_exit(input.model.config);
    if (!recorded(input.state) || exit >= input.model.config.layers) return {};
    const Tensor& shallow = state_after(input.state, exit - 1);
    std::vector<Tensor> terms{output_cross_entropy(ctx, input.output, input.targets, input.weights),
                              exit_loss(ctx, input, shallow)};
    std::vector<float> weights{1.0f, 1.0f};
    if (config_.state_weight != 0) {
      terms.push_back(distance_to_nearest(ctx, input, shallow));
      weights.push_back(config_.state_weight);
    }
    return weighted_sum(ctx, terms, weights);
  }

 protected:
  Confidence confidence() const override { return config_.confidence; }
  float threshold() const override { return config_.threshold; }
  int64_t first_exit(const ModelConfig& config) const override {
    return config_.exit_layer > 0 ? config_.exit_layer : std::max<int64_t>(1, config.layers * 3 / 8);
  }
  bool may_leave_before(int64_t layer, const ModelConfig& config) const override {
    return layer == first_exit(config);
  }

 private:
  // The device finds the nearest one: nothing waits for it.
  Tensor distance_to_nearest(Context& ctx, const LossInput& input, const Tensor& shallow) const {
    const RowSet& rows = input.batch.logit_rows;
    const Tensor from = gather_rows(ctx, shallow, rows);
    Tensor nearest;
    {
      const RecordingScope looking(ctx, false);
      const int64_t first = first_exit(input.model.config);
      const auto deep = [&](int64_t i) {
        return gather_rows(ctx, detach(state_after(input.state, first + i)), rows);
      };
      std::vector<Tensor> distances;
      for (int64_t i = 0; first + i < input.model.config.layers; ++i)
        distances.push_back(mean_squared(ctx, from, deep(i), input.weights));
      const Tensor chosen = first_least(ctx, distances);
      Tensor ones = Tensor::empty(ctx, DType::kF32, {1, from.dim(0)});
      fill(ctx, ones, 1.0f);
      for (int64_t i = 0; i < std::ssize(distances); ++i) {  // the sum is its state, and zeros
        const Tensor gate = scale_rows(ctx, ones, chosen.rows(i, 1)).reshape({from.dim(0)});
        const Tensor state = scale_rows(ctx, deep(i), gate);
        nearest = i == 0 ? state : add(ctx, nearest, state);
      }
    }
    return mean_squared(ctx, from, nearest, input.weights);
  }

  FreeConfig config_;
};

struct LayerSkipConfig {
  int64_t exit_layer = 0;
  float dropout = 0.1f;
  float exit_loss_scale = 0.2f;
  int64_t loss_every = 1;

  template <class V>
  void visit(V& v) {
    v("exit_layer", exit_layer, "blocks that run at inference; 0: all");
    v("dropout", dropout, "chance that a row skips the last block in training; rises to it with depth");
    v("exit_loss_scale", exit_loss_scale, "of the losses at earlier blocks, against the last one's");
    v("loss_every", loss_every, "each step takes every n-th block's loss, another n-th at the next step");
  }
};

class LayerSkip final : public ExitMethod {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig& config) const override {
    if (config_.exit_layer < 0 || config_.exit_layer > config.layers)
      fail("layer_skip: exit_layer must be from 1 to {} (0: all), got {}", config.layers, config_.exit_layer);
    if (!(config_.dropout >= 0 && config_.dropout <= 1))
      fail("layer_skip: dropout must be between 0 and 1, got {}", config_.dropout);
    if (config_.exit_loss_scale < 0)
      fail("layer_skip: exit_loss_scale must not be negative, got {}", config_.exit_loss_scale);
    if (config_.loss_every < 1) fail("layer_skip: loss_every must be at least 1, got {}", config_.loss_every);
  }
  MethodTraits traits() const override {
    const bool all = config_.exit_layer == 0;
    return {.units = Units::kBlock,
            .opens_fully = all,
            .own_rule = all ? "everything runs" : "the blocks before the exit run"};
  }
  // Nobody looks at the blocks after a fixed exit; a row dropped in training is seen by the others.
  SkippedKv skipped_kv(bool training) const override {
    return training ? SkippedKv::kProject : SkippedKv::kHide;
  }

  void score(UnitCall& call, Decision& decision) const override {
    if (!call.state.training || call.input.unit == Unit::kFfn) return;
    const Batch& batch = call.input.batch;
    decision.score =
        uniform_noise(call.ctx, call.state.training.seed, static_cast<uint32_t>(call.state.training.step),
                      static_cast<uint32_t>(call.input.index()), batch.keys, batch.positions);
  }
  RowSet decide(UnitCall& call, const Decision& decision) const override {
    const int64_t layer = call.input.layer, layers = call.input.model.config.layers;
    if (!call.state.training) {
      const bool runs = config_.exit_layer == 0 || layer < config_.exit_layer;
      return runs ? RowSet::all(call.rows()) : RowSet::none(call.rows());
    }
    const float dropped = config_.dropout * depth_share(layer, layers);
    if (dropped == 0) return RowSet::all(call.rows());
    return select_rows(call.ctx, decision.score, Compare::kAbove, scalar(call.ctx, dropped));
  }

  // Earlier blocks weigh scale · Σ_{i ≤ ℓ} i, the last one L − 1 + scale · Σ_{i ≤ L−2} i (LayerSkip, eq. 6).
  Tensor task_loss(Context& ctx, const LossInput& input) const override {
    if (!recorded(input.state)) return {};
    const int64_t layers = input.model.config.layers;
    std::vector<float> weights;
    float sum = 0;
    for (int64_t layer = 0; layer + 1 < layers; ++layer) {
      sum += static_cast<float>(layer);
      const bool turn = (layer + input.state.training.step) % config_.loss_every == 0;
      weights.push_back(turn ? config_.exit_loss_scale * sum : 0.0f);
    }
    weights.push_back(layers > 1 ? static_cast<float>(layers - 1) + config_.exit_loss_scale * sum : 1.0f);
    return loss_over_layers(ctx, input, weights);
  }

 private:
  // 0 at the first block, 1 at the last, doubling its distance to −1 over the depth.
  static float depth_share(int64_t layer, int64_t layers) {
    return layers > 1 ? std::exp2(static_cast<float>(layer) / static_cast<float>(layers - 1)) - 1.0f : 0.0f;
  }

  LayerSkipConfig config_;
};

}  // namespace

std::unique_ptr<Method> make_calm() {
  return std::make_unique<Calm>();
}

std::unique_ptr<Method> make_free() {
  return std::make_unique<Free>();
}

std::unique_ptr<Method> make_layer_skip() {
  return std::make_unique<LayerSkip>();
}

}  // namespace fathom
