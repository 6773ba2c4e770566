// HighwayNet, a baseline: the FFN's sum with the residual becomes a mix, y = T ⊙ F(x) + (1 − T) ⊙ x with
// T = σ(W x + b). Nothing skips; attention is as it was.
#include "base/format.h"
#include "ops/linear/linear.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/scale_rows.h"
#include "skip/methods.h"

namespace fathom {
namespace {

struct HighwayConfig {
  float init_bias = -2.0f;
  float init_std = 0.02f;

  template <class V>
  void visit(V& v) {
    v("init_bias", init_bias, "of the transform gates at the start: below 0, most of x is carried");
    v("init_std", init_std, "of the gates' weights at the start");
  }
};

struct HighwayGate {
  Tensor weight, bias;  // (width, width), (width)
};

class Highway final : public Method {
 public:
  std::vector<Field> fields() override { return fields_of(config_); }
  MethodTraits traits() const override { return {.units = Units::kFfn, .scales_branch = true}; }

  std::vector<MethodParameter> parameters(const ModelConfig& config) override {
    const int64_t d = config.width;
    gates_.resize(static_cast<size_t>(config.layers));
    std::vector<MethodParameter> all;
    for (size_t i = 0; i < gates_.size(); ++i) {
      const std::string prefix = fmt::format("layers.{}.transform.", i);
      all.push_back({prefix + "weight", &gates_[i].weight, {d, d}, 0, config_.init_std});
      all.push_back({prefix + "bias", &gates_[i].bias, {d}, config_.init_bias, 0, false});
    }
    return all;
  }

  // T ⊙ (F − x): what is left to add to x. Written so, it serves any rows, whoever chose them.
  Tensor blend(UnitCall& call, const Decision& decision, const Tensor& branch) const override {
    if (call.input.unit == Unit::kAttention) return branch;
    Context& ctx = call.ctx;
    const HighwayGate& gate = gates_[static_cast<size_t>(call.input.layer)];
    const Tensor x = gather_rows(ctx, call.input.h, computed_rows(call, decision));
    const Tensor transform = apply(ctx, Unary::kSigmoid, linear(ctx, x, gate.weight, gate.bias));
    return scale_rows(ctx, add(ctx, branch, affine(ctx, x, -1.0f, 0.0f)), transform);
  }

 private:
  HighwayConfig config_;
  std::vector<HighwayGate> gates_;
};

}  // namespace

std::unique_ptr<Method> make_highway() {
  return std::make_unique<Highway>();
}

}  // namespace fathom
