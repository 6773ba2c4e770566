// SkipLayer: a binary router in front of every block, trained from scratch. And WideFFN, its baseline: the
// same router in front of the FFN alone (of twice the width: the recipe's model says so).
#include <array>

#include "base/format.h"
#include "model/transformer.h"
#include "ops/linear/linear.h"
#include "ops/rows/assign.h"
#include "ops/rows/mask_rows.h"
#include "ops/rows/noise.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/reduce.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/scale_rows.h"
#include "skip/methods.h"
#include "tensor/rows.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

enum class RouterKind : uint8_t { kGumbel, kSigmoid, kTop1 };
std::span<const std::string_view> enum_names(RouterKind) {
  static constexpr std::array<std::string_view, 3> kNames{"gumbel", "sigmoid", "top1"};
  return kNames;
}

struct SkipLayerConfig {
  RouterKind router = RouterKind::kGumbel;
  float capacity_weight = 0.1f;
  float init_std = 0.02f;
  Units units = Units::kBlock;

  template <class V>
  void visit(V& v) {
    v("router", router, "gumbel: straight-through Gumbel-softmax; sigmoid, top1: soft scaling (eq. 4)");
    v("capacity_weight", capacity_weight, "λ of Σ (share of rows run − kept share)²");
    v("init_std", init_std, "of the routers' weights at the start");
    v("units", units,
      "the units that have a router: the block as one, the attention or the mlp alone, or both, each its own",
      "wrap");
  }
};

struct SkipLayerState final : MethodState {
  int64_t routed = -1;   // the layer whose router's product was the norm's (rms_norm_routed) in this pass
  ScaledThrough scaled;  // eq. 4 of the block before, which the next such router applies
};

class SkipLayer final : public Method {
 public:
  explicit SkipLayer(Units units) { config_.units = units; }
  std::vector<Field> fields() override { return fields_of(config_); }

  std::vector<MethodParameter> parameters(const ModelConfig& config) override {
    const bool both = config_.units == Units::kBoth;
    routers_.resize(static_cast<size_t>(both ? 2 * config.layers : config.layers));
    std::vector<MethodParameter> all;
    const int64_t logits = config_.router == RouterKind::kSigmoid ? 1 : 2;
    for (size_t i = 0; i < routers_.size(); ++i) {
      const char* unit = !both ? "" : i % 2 ? "mlp." : "attention.";
      all.push_back({fmt::format("layers.{}.{}router.weight", both ? i / 2 : i, unit),
                     &routers_[i],
                     {logits, config.width},
                     0,
                     config_.init_std});
    }
    return all;
  }

  MethodTraits traits() const override {
    return {.units = config_.units,
            .reads_share = true,
            .keeps_density = config_.router == RouterKind::kGumbel,
            .steers = true,
            .own_rule = "the rows run whose router says so (arg-max)",
            .own_rule_skips = true};
  }

  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t) const override {
    return std::make_unique<SkipLayerState>();
  }
  void begin(Context&, const Model&, const Batch&, SkipState& state) const override {
    state.of<SkipLayerState>(*this) = {};
  }

  // decision.score: probability of running, from the noisy logits in training.
  void score(UnitCall& call, Decision& decision) const override {
    if (!asks(call.input)) return;
    Context& ctx = call.ctx;
    Tensor difference = routes(call, call.input.layer) ? routed_product(call, decision) : product(call);
    if (config_.router == RouterKind::kGumbel && call.state.training) {
      // The difference of two Gumbel noises is logistic.
      const Batch& batch = call.input.batch;
      const Tensor u =
          uniform_noise(ctx, call.state.training.seed, static_cast<uint32_t>(call.state.training.step),
                        static_cast<uint32_t>(call.input.index()), batch.keys, batch.positions);
      difference = add(ctx, difference, apply(ctx, Unary::kLogit, u));
    }
    decision.score = apply(ctx, Unary::kSigmoid, difference);
  }

  RowSet decide(UnitCall& call, const Decision& decision) const override {
    return above_threshold(call, decision.score, 0.5f);
  }

  bool joins(UnitCall& call, const Decision& decision, const Tensor& branch, Tensor& h) const override {
    if (config_.units == Units::kBlock || !asks(call.input)) return false;
    if (branch) add_branch(call.ctx, decision, branch, {}, h);
    scale(call, decision, h);
    return true;
  }

  void after_block(UnitCall& call, const Decision& decision, Tensor& h) const override {
    if (config_.units == Units::kBlock) scale(call, decision, h);
  }

  // λ Σ (r − P)²: r is the share of rows that ran; its gradient enters the probability of every row.
  Tensor penalty(Context& ctx, const LossInput& input) const override {
    std::vector<Tensor> terms;
    for (const UnitRecord& unit : input.state.pass.units) {
      const Tensor& p = unit.decision.score;
      if (!p || (config_.units == Units::kBlock && unit.unit % 2 == 1)) continue;
      const Tensor r = kept_share(ctx, unit.decision.kept, p);
      terms.push_back(apply(ctx, Unary::kSquare, affine(ctx, r, 1.0f, -input.state.training.share)));
    }
    if (terms.empty()) return {};
    return weighted_sum(ctx, terms, std::vector<float>(terms.size(), config_.capacity_weight));
  }

 private:
  bool asks(const UnitInput& input) const {
    return (input.unit == Unit::kFfn) == (config_.units == Units::kFfn) || config_.units == Units::kBoth;
  }

  const Tensor& router_of(const UnitInput& input) const {
    return routers_[static_cast<size_t>(config_.units == Units::kBoth ? input.index() : input.layer)];
  }

  // Of running less that of skipping, f32 (rows).
  Tensor product(UnitCall& call) const {
    Context& ctx = call.ctx;
    // (rows, 2): skip, run; with a sigmoid (rows, 1)
    Tensor logits = linear(ctx, call.input.h, router_of(call.input));
    if (config_.router != RouterKind::kSigmoid) {
      Tensor run_less_skip = Tensor::empty(ctx, DType::kF32, {2}), first = run_less_skip.rows(0, 1);
      fill(ctx, run_less_skip, 1.0f);
      fill(ctx, first, -1.0f);
      logits = linear(ctx, logits, run_less_skip.reshape({1, 2}));
    }
    return logits.reshape({logits.dim(0)});
  }

  // In training on a GPU the router of a block reads its rows where attention's norm does, and the scaling of
  // the block before is in the same gradient: one pass over all rows, forward and back. Returns whether that
  // holds for `layer`.
  bool routes(const UnitCall& call, int64_t layer) const {
    const Context& ctx = call.ctx;
    const Model& model = call.input.model;
    return config_.units == Units::kBlock && config_.router == RouterKind::kGumbel && call.state.training &&
           ctx.tape() && ctx.tape()->recording() && call.input.h.gradient() && !call.input.present &&
           model.config.norm_placement != NormPlacement::kAfter &&
           activation_type(ctx, model, layer, Unit::kAttention) == DType::kBF16;
  }
  Tensor routed_product(UnitCall& call, Decision& decision) const {
    const UnitInput& input = call.input;
    const ModelConfig& config = input.model.config;
    auto& mine = call.state.of<SkipLayerState>(*this);
    const RoutedRows rows = rms_norm_routed(
        call.ctx, input.h, input.model.weights.blocks[static_cast<size_t>(input.layer)].attention_norm,
        {config.norm_eps, config.norm_weight_offset}, router_of(input), mine.scaled);
    mine.scaled = {};
    mine.routed = input.layer;
    decision.input = rows.normed;
    return rows.logit;
  }

  // Eq. 4 over the unit's output with its residual: run, F(x) · g₁; skipped, x · g₀. Gumbel scales the
  // gradient only.
  void scale(UnitCall& call, const Decision& decision, Tensor& h) const {
    if (!decision.score || (config_.router == RouterKind::kGumbel && !call.state.training)) return;
    Context& ctx = call.ctx;
    const Tensor ran = row_mask(ctx, decision.kept, call.rows());
    auto& mine = call.state.of<SkipLayerState>(*this);
    const int64_t layer = call.input.layer;
    if (mine.routed == layer && layer + 1 < call.input.model.config.layers && routes(call, layer + 1)) {
      mine.scaled = {decision.score, ran};
      return;
    }
    const Tensor chosen = add(ctx, multiply(ctx, decision.score, affine(ctx, ran, 2.0f, -1.0f)),
                              affine(ctx, ran, -1.0f, 1.0f));  // p where it ran, 1 − p where not
    assign(
        ctx, h,
        config_.router == RouterKind::kGumbel ? scale_through(ctx, h, chosen) : scale_rows(ctx, h, chosen));
  }

  SkipLayerConfig config_;
  std::vector<Tensor> routers_;  // (2, width), of a sigmoid (1, width): one per layer, or per unit (both)
};

}  // namespace

std::unique_ptr<Method> make_skip_layer() {
  return std::make_unique<SkipLayer>(Units::kBlock);
}

std::unique_ptr<Method> make_wide_ffn() {
  return std::make_unique<SkipLayer>(Units::kFfn);
}

}  // namespace fathom
