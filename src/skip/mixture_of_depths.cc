// Mixture-of-Depths: in training a router keeps the best ⌈b·T⌉ rows of each sequence and scales their
// branches, h + σ(w·h) · branch. That choice looks ahead, so a small predictor learns to foresee it from the
// row alone and decides at inference.
#include <array>

#include "base/format.h"
#include "ops/linear/linear.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/quantile.h"
#include "ops/rows/reduce.h"
#include "ops/rows/select_rows.h"
#include "skip/methods.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

// How the routers' gates begin. σ(0) = 0.5 halves every branch: new weights grow around it, trained ones
// break.
enum class RouterStart : uint8_t {
  kAuto,      // open on a pretrained model, otherwise as the paper has it
  kPaper,     // no bias
  kOpen,      // bias 5 and small weights: σ is about 0.9933, the model begins as it was
  kReleased,  // GateSkip's port: bias 1, and at inference the branch as it is
};
std::span<const std::string_view> enum_names(RouterStart) {
  static constexpr std::array<std::string_view, 4> kNames{"auto", "paper", "open", "released"};
  return kNames;
}

// Of init_std, what the weights of open routers begin with: the numbers of a pretrained model's residual
// stream are in the hundreds, and w·h would outweigh the bias. Not 0, which would rate all rows alike.
constexpr float kOpenShare = 0.001f;

struct MixtureConfig {
  float predictor_weight = 1.0f;
  float init_std = 0.02f;
  RouterStart start = RouterStart::kAuto;

  template <class V>
  void visit(V& v) {
    v("predictor_weight", predictor_weight, "of the predictors' cross-entropy in the loss");
    v("init_std", init_std,
      "of the routers' and predictors' weights at the start; routers of start: open begin with a thousandth "
      "of it");
    v("start", start,
      "the routers' bias: paper, none; open, 5, and small weights (a gate of about 0.9933: a pretrained "
      "model begins as it was); released, 1, and the gate is left out at inference; auto: open where the "
      "weights are pretrained, else paper");
  }
};

struct DepthRouter {
  Tensor weight, bias;                          // (1, width), (1) or undefined
  Tensor inner, inner_bias, outer, outer_bias;  // the predictor: (width / 2, width), …, (1, width / 2), (1)
};

struct MixtureState final : MethodState {
  Tensor rate;  // f32 (rows): the router's, of this block; undefined where another method rates
};

// −(y ln p + (1 − y) ln(1 − p)), mean over the rows. p, y: f32 (rows)
Tensor binary_cross_entropy(Context& ctx, const Tensor& p, const Tensor& y) {
  const auto other = [&](const Tensor& x) { return affine(ctx, x, -1.0f, 1.0f); };
  const auto log_of = [&](const Tensor& x) { return apply(ctx, Unary::kLogFloor, x); };
  return affine(
      ctx, mean_rows(ctx, add(ctx, multiply(ctx, y, log_of(p)), multiply(ctx, other(y), log_of(other(p))))),
      -1.0f, 0.0f);
}

class MixtureOfDepths final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  void start_from_pretrained() override {
    if (config_.start == RouterStart::kAuto) config_.start = RouterStart::kOpen;
  }
  std::unique_ptr<MethodState> make_state(Context&, const ModelConfig&, int64_t) const override {
    return std::make_unique<MixtureState>();
  }
  MethodTraits traits() const override {
    return {.units = Units::kBlock,
            .reads_share = true,
            .keeps_density = true,
            .steers = true,
            .own_rule = "the rows run whose predictor says so (arg-max)",
            .own_rule_skips = true};
  }
  SkippedKv skipped_kv(bool) const override { return SkippedKv::kHide; }

  std::vector<MethodParameter> parameters(const ModelConfig& config) override {
    const int64_t d = config.width, half = d / 2;
    routers_.resize(static_cast<size_t>(config.layers));
    std::vector<MethodParameter> all;
    for (size_t i = 0; i < routers_.size(); ++i) {
      DepthRouter& router = routers_[i];
      const std::string prefix = fmt::format("layers.{}.", i);
      const bool open = config_.start == RouterStart::kOpen,
                 released = config_.start == RouterStart::kReleased;
      all.push_back(
          {prefix + "router.weight", &router.weight, {1, d}, 0, config_.init_std * (open ? kOpenShare : 1)});
      if (open || released)
        all.push_back({prefix + "router.bias", &router.bias, {1}, open ? 5.0f : 1.0f, 0, false});
      all.push_back({prefix + "predictor.inner.weight", &router.inner, {half, d}, 0, config_.init_std});
      all.push_back({prefix + "predictor.inner.bias", &router.inner_bias, {half}, 0, 0, false});
      all.push_back({prefix + "predictor.outer.weight", &router.outer, {1, half}, 0, config_.init_std});
      all.push_back({prefix + "predictor.outer.bias", &router.outer_bias, {1}, 0, 0, false});
    }
    return all;
  }

  void begin(Context&, const Model&, const Batch&, SkipState& state) const override {
    state.of<MixtureState>(*this).rate = {};
  }

  // decision.gate: the router's σ(w·h); decision.score: the predictor's probability.
  void score(UnitCall& call, Decision& decision) const override {
    if (call.input.unit == Unit::kFfn && decision.score) return;
    Context& ctx = call.ctx;
    const DepthRouter& router = routers_[static_cast<size_t>(call.input.layer)];
    if (call.state.training || config_.start != RouterStart::kReleased) {
      decision.gate = apply(ctx, Unary::kSigmoid, scalar_head(ctx, call.input.h, router.weight, router.bias));
      call.state.of<MixtureState>(*this).rate = decision.gate;
    }
    const Tensor inner =
        apply(ctx, Unary::kSilu, linear(ctx, detach(call.input.h), router.inner, router.inner_bias));
    decision.score = apply(ctx, Unary::kSigmoid, scalar_head(ctx, inner, router.outer, router.outer_bias));
  }

  RowSet decide(UnitCall& call, const Decision& decision) const override {
    Context& ctx = call.ctx;
    if (call.state.training) {
      const Tensor& own = call.state.of<MixtureState>(*this).rate;
      const Tensor best = top_share_by_sequence(ctx, own ? own : decision.score, call.input.batch.sequence,
                                                call.state.training.share);
      return select_rows(ctx, best, Compare::kAbove, scalar(ctx, 0.5f));
    }
    return above_threshold(call, decision.score, 0.5f);
  }

  // The predictors learn who was among the best: the mean over rows and blocks.
  Tensor penalty(Context& ctx, const LossInput& input) const override {
    std::vector<Tensor> terms;
    for (const UnitRecord& unit : input.state.pass.units) {
      const Tensor& p = unit.decision.score;
      if (!p || unit.unit % 2 == 1) continue;
      terms.push_back(binary_cross_entropy(ctx, p, row_mask(ctx, unit.decision.kept, p.dim(0))));
    }
    if (terms.empty()) return {};
    const float weight = config_.predictor_weight / static_cast<float>(terms.size());
    return weighted_sum(ctx, terms, std::vector<float>(terms.size(), weight));
  }

 private:
  MixtureConfig config_;
  std::vector<DepthRouter> routers_;
};

}  // namespace

std::unique_ptr<Method> make_mixture_of_depths() {
  return std::make_unique<MixtureOfDepths>();
}

}  // namespace fathom
