// Skip-Middle: a row that has gathered enough in the lower half skips from the middle outward. On the block's
// input s_ℓ = ReLU(w_ℓ·h + b_ℓ), S_ℓ = Σ_{ℓ' ≤ ℓ} s_ℓ', g_ℓ = 1 − clamp(S_ℓ, 0, 1) for ℓ < L/2; the upper
// half mirrors it: g_ℓ = g_{L−1−ℓ}. The same g scales both branches and biases the row's key.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"
#include "ops/rows/assign.h"
#include "ops/rows/concatenate.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/reduce.h"
#include "ops/rows/select_rows.h"
#include "skip/methods.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

// Where ln g is added. On the query's side it is the same number for all keys of a softmax, which cancels it
// (what the released code does): nothing needs to be added there.
enum class GateAxis : uint8_t { kKey, kQuery, kNone };
std::span<const std::string_view> enum_names(GateAxis) {
  static constexpr std::array<std::string_view, 3> kNames{"key", "query", "none"};
  return kNames;
}

// Table 1, and one that is only in the released code.
enum class Controller : uint8_t {
  kNone,
  kSparsity,
  kSparsityVariance,
  kAdaptive,
  kProportional,
  kProportionalDerivative,
  kSparsityVarianceL2,
};
std::span<const std::string_view> enum_names(Controller) {
  static constexpr std::array<std::string_view, 7> kNames{"none",
                                                          "sparsity",
                                                          "sparsity_variance",
                                                          "adaptive",
                                                          "proportional",
                                                          "proportional_derivative",
                                                          "sparsity_variance_l2"};
  return kNames;
}

struct SkipMiddleConfig {
  GateAxis gate_axis = GateAxis::kKey;
  Controller controller = Controller::kProportional;
  float first_target = 1.0f, final_target = 0.5f;
  float mean_weight = 0.01f, variance_weight = -0.01f, l2_weight = 0.1f;
  float rate = 0.0f, tolerance = 1e-2f;
  float short_steps = 1.0f, long_steps = 10.0f;
  float init_std = 0.02f;

  template <class V>
  void visit(V& v) {
    v("gate_axis", gate_axis,
      "ln g is added to the logits of the row's key, of its query (no effect), or not");
    v("controller", controller, "what pushes the gates towards their targets");
    v("first_target", first_target, "target of the mean gate of block 0; linear in between, mirrored above");
    v("final_target", final_target, "target of the mean gate of block L/2 − 1");
    v("mean_weight", mean_weight, "sparsity, sparsity_variance: α, of the mean gate");
    v("variance_weight", variance_weight, "sparsity_variance: β, of the gates' variance");
    v("l2_weight", l2_weight, "sparsity_variance_l2: of the squared distances to both targets");
    v("rate", rate, "γ of the adaptive controllers; 0: 1e-3, for proportional_derivative 1e-2");
    v("tolerance", tolerance, "δ: adaptive coefficients rest while this close to the target");
    v("short_steps", short_steps, "proportional_derivative: steps of the short moving average");
    v("long_steps", long_steps, "proportional_derivative: steps of the long moving average");
    v("init_std", init_std, "of the gates' weights at the start");
  }
};

struct MiddleGate {
  Tensor weight, bias;  // (1, width), (1)
};

// One coefficient of the loss and what its controller remembers.
struct Coefficient {
  float value = 0;
  float short_mean = 0, long_mean = 0;  // of the distance to the target
};

struct SkipMiddleState final : MethodState {
  bool scored = false;        // in this pass
  Tensor sum;                 // f32 (rows): S so far
  std::vector<Tensor> gates;  // f32 (rows) per lower block: g
  std::vector<Tensor> open;   // the same at a budget: 1 where the row has not skipped yet
};

class SkipMiddle final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig& config) const override {
    if (config.layers % 2 != 0)
      fail("skip_middle: needs an even number of layers to mirror, the model has {}", config.layers);
  }
  void check_training(float share) const override;
  std::vector<MethodParameter> parameters(const ModelConfig& config) override;
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t) const override {
    return std::make_unique<SkipMiddleState>();
  }
  std::vector<float*> controllers() override;

  MethodTraits traits() const override {  // S ≥ 1 skips at any budget, and S cannot be resumed
    return {.units = Units::kBlock,
            .has_key_bias = has_key_bias(),
            .resumes = false,
            .opens_fully = false,
            .own_rule = "the blocks run that no gate has closed (S below 1)",
            .own_rule_skips = true};
  }
  void begin(Context& ctx, const Model& model, const Batch& batch, SkipState& state) const override;
  void score(UnitCall& call, Decision& decision) const override;
  RowSet decide(UnitCall& call, const Decision& decision) const override;
  // One θ for all.
  float threshold_weight(const ModelConfig&, int64_t, SkippedKv) const override { return 1; }
  SkippedKv skipped_kv(bool) const override { return SkippedKv::kHide; }
  Tensor penalty(Context& ctx, const LossInput& input) const override;
  void observe(Context& ctx, SkipState& state, int64_t part) override;
  std::vector<Tensor> figures(Context& ctx) override;
  void after_step(std::span<const float> figures) override;

 private:
  bool has_key_bias() const { return config_.gate_axis == GateAxis::kKey; }
  void accumulate(UnitCall& call, SkipMiddleState& mine) const;
  float mean_target(size_t block) const;
  // Attention of the lower half speaks for its block and the mirror's.
  bool judged(const UnitRecord& unit) const {
    return unit.unit % 2 == 0 && unit.unit / 2 < static_cast<int64_t>(gates_.size()) && unit.decision.score;
  }
  bool adapts() const {
    return config_.controller == Controller::kAdaptive || config_.controller == Controller::kProportional ||
           config_.controller == Controller::kProportionalDerivative;
  }
  void update(Coefficient& coefficient, float distance) const;

  SkipMiddleConfig config_;
  std::vector<MiddleGate> gates_;                   // of the lower half
  std::vector<Coefficient> of_mean_, of_variance_;  // α, β: the mirror's are the same
  std::vector<std::vector<Tensor>> seen_;           // of each, the step's g so far: (rows) of each part
  float started_ = 0;                               // 1 once the moving averages hold something
};

// What the controller does not read must be as it comes.
void SkipMiddle::check_training(float) const {
  const SkipMiddleConfig plain;
  const Controller controller = config_.controller;
  const auto silent = [&](bool read, float SkipMiddleConfig::*value, const char* key) {
    if (!read && config_.*value != plain.*value)
      fail("skip_middle: {} ({:g}) does nothing with controller: {}: leave it out", key, config_.*value,
           enum_names(controller)[static_cast<size_t>(controller)]);
  };
  const bool by_variance = controller == Controller::kSparsityVariance,
             derivative = controller == Controller::kProportionalDerivative,
             squared = controller == Controller::kSparsityVarianceL2;
  silent(controller == Controller::kSparsity || by_variance, &SkipMiddleConfig::mean_weight, "mean_weight");
  silent(by_variance, &SkipMiddleConfig::variance_weight, "variance_weight");
  silent(squared, &SkipMiddleConfig::l2_weight, "l2_weight");
  silent(adapts(), &SkipMiddleConfig::rate, "rate");
  silent(adapts(), &SkipMiddleConfig::tolerance, "tolerance");
  silent(derivative, &SkipMiddleConfig::short_steps, "short_steps");
  silent(derivative, &SkipMiddleConfig::long_steps, "long_steps");
  silent(adapts() || squared, &SkipMiddleConfig::first_target, "first_target");
  silent(adapts() || squared, &SkipMiddleConfig::final_target, "final_target");
}

std::vector<MethodParameter> SkipMiddle::parameters(const ModelConfig& config) {
  check(config);
  const auto half = static_cast<size_t>(config.layers / 2);
  gates_.resize(half);
  of_mean_.resize(half);
  of_variance_.resize(half);
  std::vector<MethodParameter> all;
  for (size_t i = 0; i < half; ++i) {
    const std::string prefix = fmt::format("layers.{}.gate.", i);
    all.push_back({prefix + "weight", &gates_[i].weight, {1, config.width}, 0, config_.init_std});
    all.push_back({prefix + "bias", &gates_[i].bias, {1}, 0, 0, false});
  }
  return all;
}

std::vector<float*> SkipMiddle::controllers() {
  std::vector<float*> all{&started_};
  for (std::vector<Coefficient>* list : {&of_mean_, &of_variance_}) {
    for (Coefficient& each : *list) all.insert(all.end(), {&each.value, &each.short_mean, &each.long_mean});
  }
  return all;
}

void SkipMiddle::begin(Context& ctx, const Model&, const Batch& batch, SkipState& state) const {
  auto& mine = state.of<SkipMiddleState>(*this);
  mine.scored = false;
  const auto room = [&] { return Tensor::empty(ctx, DType::kF32, {batch.rows()}); };
  mine.sum = room();
  mine.gates.resize(gates_.size());
  for (Tensor& gate : mine.gates) gate = room();
  mine.open.resize((state.thresholds.any() && !state.training) || state.pass.collect ? gates_.size() : 0);
  for (Tensor& open : mine.open) open = room();
}

// The lower block's S and g, where the pass remembers them.
void SkipMiddle::accumulate(UnitCall& call, SkipMiddleState& mine) const {
  Context& ctx = call.ctx;
  const auto block = static_cast<size_t>(call.input.layer);
  const MiddleGate& gate = gates_[block];
  const Tensor s = apply(ctx, Unary::kRelu, scalar_head(ctx, call.input.h, gate.weight, gate.bias));
  assign(ctx, mine.sum, block == 0 ? s : add(ctx, mine.sum, s));
  assign(ctx, mine.gates[block], affine(ctx, apply(ctx, Unary::kClamp01, mine.sum), -1.0f, 1.0f));
  if (mine.open.empty()) return;
  // A budget has a threshold per block, but who has skipped stays out up to the mirror.
  const Tensor& g = mine.gates[block];
  const Tensor still_open = block == 0 ? g : multiply(ctx, g, mine.open[block - 1]);
  assign(ctx, mine.open[block], row_mask(ctx, above_threshold(call, still_open, 0, 0), call.rows()));
}

// decision.score is g as well: what a calibrated threshold (1 − θ, for S ≥ θ) is compared with.
void SkipMiddle::score(UnitCall& call, Decision& decision) const {
  auto& mine = call.state.of<SkipMiddleState>(*this);
  const int64_t layer = call.input.layer, layers = 2 * static_cast<int64_t>(gates_.size());
  const bool attention = call.input.unit == Unit::kAttention;
  mine.scored = true;
  if (attention && layer < layers / 2) accumulate(call, mine);
  const Tensor& g = mine.gates[static_cast<size_t>(std::min(layer, layers - 1 - layer))];
  decision.gate = decision.score = g;
  if (attention && has_key_bias()) decision.key_bias = apply(call.ctx, Unary::kLogFloor, g);
}

RowSet SkipMiddle::decide(UnitCall& call, const Decision& decision) const {
  const auto& mine = call.state.of<SkipMiddleState>(*this);
  const int64_t layer = call.input.layer, layers = 2 * static_cast<int64_t>(gates_.size());
  if (mine.open.empty() || !mine.scored) {  // somebody else's score (a hybrid) has no memory of who skipped
    return above_threshold(call, decision.score, 0, 0);
  }
  const Tensor& open = mine.open[static_cast<size_t>(std::min(layer, layers - 1 - layer))];
  return select_rows(call.ctx, open, Compare::kAbove, scalar(call.ctx, 0));
}

float SkipMiddle::mean_target(size_t block) const {
  const auto last = static_cast<float>(std::max<size_t>(1, gates_.size() - 1));
  return config_.first_target +
         (config_.final_target - config_.first_target) * static_cast<float>(block) / last;
}

// Eq. 5: (1/L) Σ_ℓ (α_ℓ ḡ_ℓ + β_ℓ s²_ℓ). A mirrored block has the same terms as its lower one: 2/L of the
// half.
Tensor SkipMiddle::penalty(Context& ctx, const LossInput& input) const {
  if (config_.controller == Controller::kNone) return {};
  const bool squared = config_.controller == Controller::kSparsityVarianceL2;
  std::vector<Tensor> terms;
  std::vector<float> weights;
  const auto half = static_cast<float>(gates_.size());
  for (const UnitRecord& unit : input.state.pass.units) {
    const auto block = static_cast<size_t>(unit.unit / 2);
    const Tensor& g = unit.decision.score;
    if (!judged(unit)) continue;
    Tensor mean = mean_rows(ctx, g), variance = variance_rows(ctx, g);
    float alpha = adapts() ? of_mean_[block].value : config_.mean_weight;
    float beta = adapts() ? of_variance_[block].value : config_.variance_weight;
    if (config_.controller == Controller::kSparsity) beta = 0;
    if (squared) {
      const float target = mean_target(block);
      mean = apply(ctx, Unary::kSquare, affine(ctx, mean, 1.0f, -target));
      variance = apply(ctx, Unary::kSquare, affine(ctx, variance, 1.0f, -target * (1 - target)));
      alpha = beta = config_.l2_weight;
    }
    terms.insert(terms.end(), {mean, variance});
    weights.insert(weights.end(), {alpha / half, beta / half});
  }
  if (terms.empty()) return {};
  return weighted_sum(ctx, terms, weights);
}

// distance: of the batch's mean (or variance) from its target. Eq. 6 as printed only ever raises a
// coefficient; with the absolute value, as released, it can come down again.
void SkipMiddle::update(Coefficient& coefficient, float distance) const {
  const bool derivative = config_.controller == Controller::kProportionalDerivative;
  const float rate = config_.rate > 0 ? config_.rate : derivative ? 1e-2f : 1e-3f;
  const auto follow = [&](float& mean, float steps) {
    mean = started_ > 0 ? mean + (distance - mean) / steps : distance;
  };
  follow(coefficient.short_mean, config_.short_steps);
  follow(coefficient.long_mean, config_.long_steps);
  if (!(std::abs(distance) > config_.tolerance)) return;
  // Only while the distance grows.
  if (derivative && !(distance * (coefficient.short_mean - coefficient.long_mean) > 0)) return;
  const bool by_sign = config_.controller == Controller::kAdaptive;
  coefficient.value += rate * (by_sign ? std::copysign(1.0f, distance) : distance);
}

void SkipMiddle::observe(Context&, SkipState& state, int64_t part) {
  if (!adapts()) return;
  if (part == 0) seen_.assign(gates_.size(), {});
  for (const UnitRecord& unit : state.pass.units) {
    if (!judged(unit)) continue;
    seen_[static_cast<size_t>(unit.unit / 2)].push_back(detach(unit.decision.score));
  }
}

// Mean and variance of g in each block that was judged.
std::vector<Tensor> SkipMiddle::figures(Context& ctx) {
  std::vector<Tensor> figures;
  for (const std::vector<Tensor>& parts : seen_) {
    if (parts.empty()) continue;
    const Tensor g = concatenate(ctx, parts);
    figures.insert(figures.end(), {mean_rows(ctx, g), variance_rows(ctx, g)});
  }
  return figures;
}

void SkipMiddle::after_step(std::span<const float> figures) {
  const bool any = !figures.empty();
  for (size_t block = 0; block < seen_.size(); ++block) {
    if (seen_[block].empty()) continue;
    const float target = mean_target(block);
    update(of_mean_[block], figures[0] - target);
    update(of_variance_[block], figures[1] - target * (1 - target));
    figures = figures.subspan(2);
  }
  if (any) started_ = 1;  // after the last block: all of them begin alike
}

}  // namespace

std::unique_ptr<Method> make_skip_middle() {
  return std::make_unique<SkipMiddle>();
}

}  // namespace fathom
