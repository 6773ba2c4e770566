#include "ops/rows/assign.h"
#include "ops/rows/pointwise.h"
#include "skip/training_test.h"

namespace fathom {
namespace {

// y = T · F(x) + (1 − T) · x on the FFN with one T for all, written the other way round.
class ConstantMix final : public SkipPolicy {
 public:
  explicit ConstantMix(float t) : t_(t) {}
  Decision decide(Context&, const UnitInput& input, PolicyState&) const override {
    return {RowSet::all(input.h.dim(0))};
  }
  void join(Context& ctx, const UnitInput& input, const Decision& decision, const Tensor& branch, Tensor& h,
            PolicyState& state) const override {
    if (input.unit == Unit::kAttention) return SkipPolicy::join(ctx, input, decision, branch, h, state);
    assign(ctx, h, add(ctx, affine(ctx, branch, t_, 0), affine(ctx, h, 1 - t_, 0)));
  }

 private:
  float t_;
};

TEST(Highway, MixesTheFfnWithItsInput) {
  const Rows rows = random_rows({9, 4});
  for (const float bias : {-40.0f, -2.0f, 0.0f, 1.5f, 40.0f}) {
    Rig rig(R"({"name": "highway", "init_std": 0, "init_bias": )" + std::to_string(bias) + "}",
            Shaped::kLlama, 0.0f);
    const Seen seen = rig.fresh(rows);
    const ArenaScope scope(rig.ctx);
    PolicyState state;
    const Tensor expected = forward(rig.ctx, rig.model, make_batch(rig.ctx, rows), FreshPass{},
                                    ConstantMix(1 / (1 + std::exp(-bias))), state);
    for (size_t i = 0; i < seen.logits.size(); ++i)
      ASSERT_NEAR(seen.logits[i], expected.data<float>()[i], 1e-4) << bias;
    EXPECT_EQ(skipped_share(seen), 0);
  }
}

TEST(Highway, ItsGateHasANumberPerChannel) {
  Rig rig(R"({"name": "highway"})", Shaped::kLlama, 0.0f);
  const Rows rows = random_rows({9, 4});
  const std::vector<float> before = rig.fresh(rows).logits;
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    if (parameter.name.ends_with("bias")) {
      EXPECT_EQ(parameter.shape, (Shape{32}));
      EXPECT_EQ(parameter.tensor->data<float>()[5], -2.0f);
    }
  }
  rig.policy->parameters(rig.model.config)[1].tensor->data<float>()[7] = 3;
  EXPECT_NE(rig.fresh(rows).logits, before);
}

}  // namespace
}  // namespace fathom
