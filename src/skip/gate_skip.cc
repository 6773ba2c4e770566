// GateSkip: residual gates. h ← h + o ⊙ g, g = σ(W x + b); a row skips the unit when the mean of its gate is
// at or below a threshold: in training the batch's quantile (Algorithm 3), at inference a calibrated one.
#include <array>
#include <cmath>

#include "base/format.h"
#include "model/transformer.h"
#include "ops/linear/linear.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/quantile.h"
#include "ops/rows/reduce.h"
#include "ops/rows/scale_rows.h"
#include "skip/gate_fit.h"
#include "skip/harm_order.h"
#include "skip/methods.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

constexpr float kOpenBias = 5.0f;  // σ(5) = 0.9933: the model starts as it was

enum class GateShape : uint8_t { kVector, kScalar };
enum class GateSharing : uint8_t { kIndividual, kShared };
enum class GateNet : uint8_t { kLinear, kMlp };
enum class GatePlacement : uint8_t { kAfter, kBefore };
enum class GateInput : uint8_t { kNormed, kResidual };
enum class GateLoss : uint8_t { kL2, kL1, kKl, kKlPaper, kKlReleased };
enum class GateUnits : uint8_t { kAttention, kMlp, kBoth, kBlock };

std::span<const std::string_view> enum_names(GateShape) {
  static constexpr std::array<std::string_view, 2> kNames{"vector", "scalar"};
  return kNames;
}
std::span<const std::string_view> enum_names(GateSharing) {
  static constexpr std::array<std::string_view, 2> kNames{"individual", "shared"};
  return kNames;
}
std::span<const std::string_view> enum_names(GateNet) {
  static constexpr std::array<std::string_view, 2> kNames{"linear", "mlp"};
  return kNames;
}
std::span<const std::string_view> enum_names(GatePlacement) {
  static constexpr std::array<std::string_view, 2> kNames{"after", "before"};
  return kNames;
}
std::span<const std::string_view> enum_names(GateInput) {
  static constexpr std::array<std::string_view, 2> kNames{"normed", "residual"};
  return kNames;
}
std::span<const std::string_view> enum_names(GateLoss) {
  static constexpr std::array<std::string_view, 5> kNames{"l2", "l1", "kl", "kl_paper", "kl_released"};
  return kNames;
}

std::span<const std::string_view> enum_names(GateUnits) {
  static constexpr std::array<std::string_view, 4> kNames{"attention", "mlp", "both",
                                                          "block_by_attention_gate"};
  return kNames;
}

struct GateSkipConfig {
  GateShape gate = GateShape::kVector;
  GateSharing sharing = GateSharing::kIndividual;
  GateNet net = GateNet::kLinear;
  GatePlacement placement = GatePlacement::kAfter;
  GateInput gate_input = GateInput::kNormed;
  bool detached = true;
  GateLoss sparsity = GateLoss::kL2;
  float sparsity_weight = 0.1f;
  float init_std = 0.01f;
  float rows_kept = 0.8f;
  GateUnits skip = GateUnits::kBoth;
  bool every_second_layer = false;
  bool two_stage = false;
  bool copy_kv = false;

  template <class V>
  void visit(V& v) {
    v("gate", gate, "one number per channel, or one per row");
    v("sharing", sharing, "a gate per unit, or one for all attention and one for all FFN");
    v("net", net, "the network that computes the gate: linear, or d → 2d → d with SiLU");
    v("placement", placement, "the gate multiplies the unit's output, or its input");
    v("gate_input", gate_input, "what the gate reads: the unit's normalised input, or the residual stream");
    v("detached", detached, "no gradient from the gate into the backbone, as in the released code",
      "detach_input");
    v("sparsity", sparsity,
      "penalty on the gates: mean square (l2), mean (l1); kl: KL of each unit's mean gate to the step's kept "
      "share, mean over units; kl_paper: the same, summed over units, as printed; kl_released: KL of every "
      "gate "
      "to rows_kept, mean over gates and units, as released");
    v("sparsity_weight", sparsity_weight, "λ_S");
    v("init_std", init_std, "of the gates' weights at the start");
    v("rows_kept", rows_kept,
      "the paper's b at inference: share of rows kept per layer by the rule batch_quantile; the fixed "
      "target of kl_released");
    v("skip", skip, "which units may skip; a gate that skips nothing still scales");
    v("every_second_layer", every_second_layer, "only odd blocks skip");
    v("two_stage", two_stage,
      "after training a scalar head, fitted to the gate, decides; the gate opens for the kept rows only");
    v("copy_kv", copy_kv,
      "as printed: at inference a skipped row's keys and values are those of the layer below");
  }
};

struct RowGate {
  Tensor weight, bias;       // (out, in), (out)
  Tensor inner, inner_bias;  // (2d, d), (2d): of an mlp gate
  Tensor head, head_bias;    // (1, d), (1): of a two-stage gate
};

// What Algorithm 3 compares with. −∞ (no row skips) where b ≥ 1 or all scores are equal.
Tensor batch_threshold(Context& ctx, const Tensor& scores, float kept) {
  if (kept >= 1 || scores.dim(0) == 0) return scalar(ctx, -INFINITY);
  return quantile(ctx, scores, 1.0f - kept, {}, IfEqual::kBelowAll);
}

// KL(Bernoulli(m) ‖ Bernoulli(b)), both kept away from 0 and 1, for every element of m.
Tensor bernoulli_kl(Context& ctx, const Tensor& m, float b) {
  constexpr float kTargetEdge = 1e-6f;
  const float target = std::clamp(b, kTargetEdge, 1.0f - kTargetEdge);
  const Tensor other = affine(ctx, m, -1.0f, 1.0f);
  const auto term = [&](const Tensor& p, float q) {
    return multiply(ctx, p, affine(ctx, apply(ctx, Unary::kLogFloor, p), 1.0f, -std::log(q)));
  };
  return add(ctx, term(m, target), term(other, 1.0f - target));
}

// While it lives the gates decide themselves, so that their score is ḡ.
class OneStage {
 public:
  explicit OneStage(bool& two_stage) : two_stage_(two_stage) { two_stage_ = false; }
  ~OneStage() { two_stage_ = true; }
  OneStage(const OneStage&) = delete;
  OneStage& operator=(const OneStage&) = delete;

 private:
  bool& two_stage_;
};

class GateSkip final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void check(const ModelConfig&) const override {
    if (config_.two_stage && config_.placement == GatePlacement::kBefore)
      fail(
          "gate_skip: two_stage needs placement after: its gates are computed once it is known which rows "
          "run, too late for the unit's input");
  }
  std::vector<MethodParameter> parameters(const ModelConfig& config) override;
  void prepare(Context& ctx, const PrepareInput& input) override;
  MethodTraits traits() const override {
    constexpr std::array kUnits{Units::kAttention, Units::kFfn, Units::kBoth, Units::kBlock};
    return {.units = kUnits[static_cast<size_t>(config_.skip)],
            .batch_quantile = true,
            .scales_branch = true,
            .gates_input = config_.placement == GatePlacement::kBefore,
            .starts_by_harm = config_.sharing == GateSharing::kIndividual,
            .reads_share = true,
            .fits_at_end = config_.two_stage,
            .steers = true};
  }
  void score(UnitCall& call, Decision& decision) const override;
  RowSet decide(UnitCall& call, const Decision& decision) const override;
  Tensor blend(UnitCall& call, const Decision& decision, const Tensor& branch) const override;
  SkippedKv skipped_kv(bool training) const override {
    return config_.copy_kv && !training ? SkippedKv::kCopyFromBelow : SkippedKv::kProject;
  }
  Tensor penalty(Context& ctx, const LossInput& input) const override;
  std::string finish(Context& ctx, const FinishInput& input) override;

 private:
  const RowGate& gate_of(const UnitInput& input) const;
  Tensor gate_input(UnitCall& call, const Tensor& h) const;
  Tensor open(UnitCall& call, const Tensor& x) const;

  GateSkipConfig config_;
  std::vector<RowGate> gates_;
};

std::vector<MethodParameter> GateSkip::parameters(const ModelConfig& config) {
  const int64_t d = config.width, out = config_.gate == GateShape::kVector ? d : 1;
  const bool shared = config_.sharing == GateSharing::kShared;
  gates_.resize(static_cast<size_t>(shared ? 2 : 2 * config.layers));
  std::vector<MethodParameter> all;
  for (size_t i = 0; i < gates_.size(); ++i) {
    RowGate& gate = gates_[i];
    const char* unit = i % 2 ? "mlp" : "attention";
    const std::string prefix =
        shared ? fmt::format("shared.{}.", unit) : fmt::format("layers.{}.{}.", i / 2, unit);
    if (config_.net == GateNet::kMlp) {
      all.push_back({prefix + "inner.weight", &gate.inner, {2 * d, d}, 0, config_.init_std});
      all.push_back({prefix + "inner.bias", &gate.inner_bias, {2 * d}, 0, 0, false});
      all.push_back({prefix + "weight", &gate.weight, {out, 2 * d}, 0, config_.init_std});
    } else {
      all.push_back({prefix + "weight", &gate.weight, {out, d}, 0, config_.init_std});
    }
    all.push_back({prefix + "bias", &gate.bias, {out}, kOpenBias, 0, false});
    if (config_.two_stage) {
      all.push_back({prefix + "head.weight", &gate.head, {1, d}, 0, 0});
      all.push_back({prefix + "head.bias", &gate.head_bias, {1}, kOpenBias, 0, false});
    }
  }
  return all;
}

const RowGate& GateSkip::gate_of(const UnitInput& input) const {
  const int64_t unit = input.unit == Unit::kFfn ? 1 : 0;
  return gates_[static_cast<size_t>(config_.sharing == GateSharing::kShared ? unit : input.index())];
}

Tensor GateSkip::gate_input(UnitCall& call, const Tensor& h) const {
  const UnitInput& input = call.input;
  const Tensor x = config_.gate_input == GateInput::kResidual
                       ? h
                       : unit_input(call.ctx, input.model, input.layer, input.unit, h);
  return config_.detached ? detach(x) : x;
}

// x: (rows, width) -> (rows, width) or, of a scalar gate, (rows)
Tensor GateSkip::open(UnitCall& call, const Tensor& x) const {
  Context& ctx = call.ctx;
  const RowGate& gate = gate_of(call.input);
  Tensor inner = x;
  if (config_.net == GateNet::kMlp)
    inner = apply(ctx, Unary::kSilu, linear(ctx, x, gate.inner, gate.inner_bias));
  const Tensor open = apply(ctx, Unary::kSigmoid, linear(ctx, inner, gate.weight, gate.bias));
  return config_.gate == GateShape::kVector ? open : open.reshape({open.dim(0)});
}

void GateSkip::score(UnitCall& call, Decision& decision) const {
  Context& ctx = call.ctx;
  const Tensor x = gate_input(call, call.input.h);
  if (config_.gate_input == GateInput::kNormed && !ctx.tape()) decision.input = x;
  if (config_.two_stage && !call.state.training) {  // heads are fitted to the gates when those have learned
    const RowGate& gate = gate_of(call.input);
    decision.score = apply(ctx, Unary::kSigmoid, scalar_head(ctx, x, gate.head, gate.head_bias));
    decision.gate = {};  // blend() opens the kept rows' gates
    return;
  }
  decision.gate = open(call, x);
  decision.score = decision.gate.rank() == 2 ? mean_columns(ctx, decision.gate) : decision.gate;
  decision.input_gate = config_.placement == GatePlacement::kBefore ? decision.gate : Tensor();
}

RowSet GateSkip::decide(UnitCall& call, const Decision& decision) const {
  if (config_.every_second_layer && call.input.layer % 2 == 0) return RowSet::all(call.rows());
  if (call.state.training || call.state.pass.batch_quantile) {
    const float kept = call.state.training ? call.state.training.share : config_.rows_kept;
    return select_rows(call.ctx, decision.score, Compare::kAbove,
                       batch_threshold(call.ctx, decision.score, kept));
  }
  return above_threshold(call, decision.score, -INFINITY);
}

Tensor GateSkip::blend(UnitCall& call, const Decision& decision, const Tensor& branch) const {
  if (config_.placement == GatePlacement::kBefore) return branch;
  if (decision.gate) return Method::blend(call, decision, branch);
  // Somebody else decided (a hybrid), or the scalar head of a two-stage gate did: open the computed rows'
  // gates.
  const Tensor x = gate_input(call, gather_rows(call.ctx, call.input.h, computed_rows(call, decision)));
  return scale_rows(call.ctx, branch, open(call, x));
}

// The size of the gates, skipped rows included: the mean over all of them (Algorithm 1; eq. 4 writes a norm).
Tensor GateSkip::penalty(Context& ctx, const LossInput& input) const {
  std::vector<Tensor> terms;
  for (const UnitRecord& unit : input.state.pass.units) {
    const Tensor& gate = unit.decision.gate;
    if (!gate) continue;
    const auto mean = [&](const Tensor& x) {
      return mean_rows(ctx, x.rank() == 2 ? mean_columns(ctx, x) : x);
    };
    switch (config_.sparsity) {
      case GateLoss::kL2:
        terms.push_back(mean(apply(ctx, Unary::kSquare, gate)));
        break;
      case GateLoss::kL1:
        terms.push_back(mean(apply(ctx, Unary::kAbs, gate)));
        break;
      case GateLoss::kKl:
      case GateLoss::kKlPaper:
        terms.push_back(bernoulli_kl(ctx, mean(gate), input.state.training.share));
        break;
      case GateLoss::kKlReleased:
        terms.push_back(mean(bernoulli_kl(ctx, gate, config_.rows_kept)));
        break;
    }
  }
  if (terms.empty()) return {};
  const float units = config_.sparsity == GateLoss::kKlPaper ? 1.0f : static_cast<float>(terms.size());
  return weighted_sum(ctx, terms, std::vector<float>(terms.size(), config_.sparsity_weight / units));
}

// Thresholds are per unit, so the harm order cannot decide between units here; it sets how far each gate
// starts open: the most harmful unit at bias 6, the least at 4.
void GateSkip::prepare(Context& ctx, const PrepareInput& input) {
  if (!input.harm_order || config_.sharing == GateSharing::kShared) return;
  const std::vector<int64_t> order = harm_order(ctx, input);  // least harmful first
  for (size_t rank = 0; rank < order.size(); ++rank) {
    Tensor& bias = gates_[static_cast<size_t>(order[rank])].bias;
    const float place = static_cast<float>(rank) / static_cast<float>(std::max<size_t>(1, order.size() - 1));
    const std::vector<float> start(static_cast<size_t>(bias.numel()), kOpenBias - 1.0f + 2.0f * place);
    copy_from_host(ctx, start, bias);
  }
}

std::string GateSkip::finish(Context& ctx, const FinishInput& input) {
  if (!config_.two_stage) return {};
  std::vector<GateHead> heads;
  for (const RowGate& gate : gates_) heads.push_back({gate.head, gate.head_bias});
  const OneStage open(config_.two_stage);
  const GateReading reading{input.policy, config_.gate_input == GateInput::kResidual};
  const GateFit fit = fit_gate_heads(ctx, reading, input.model, input.batches, heads);
  return fmt::format("gate heads fitted to {} rows: {:.1f} % of the gates' variance explained", fit.rows,
                     100 * fit.explained);
}

}  // namespace

std::unique_ptr<Method> make_gate_skip() {
  return std::make_unique<GateSkip>();
}

}  // namespace fathom
