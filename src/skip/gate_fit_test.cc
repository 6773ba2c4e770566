#include "skip/gate_fit.h"

#include <gtest/gtest.h>

#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

GateFit fit(Rig& rig, double ridge = 1e-4, int texts = 12) {
  const ArenaScope scope(rig.ctx);
  std::vector<Batch> batches;
  for (int i = 0; i < texts; ++i)
    batches.push_back(make_batch(rig.ctx, random_rows({30, 25}, 400 + static_cast<uint64_t>(i))));
  return fit_gate_heads(rig.ctx, *rig.policy, rig.model, batches, ridge);
}

std::vector<float> values_of(Rig& rig, const std::string& name) {
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    if (parameter.name == name)
      return {parameter.tensor->data<float>(), parameter.tensor->data<float>() + parameter.shape.numel()};
  }
  ADD_FAILURE() << name;
  return {};
}

// logit ḡ of a scalar gate is linear in its input: the head must become the gate.
TEST(GateFit, RecoversAScalarGate) {
  for (const char* extra : {"", R"(, "gate_input": "residual")", R"(, "sharing": "shared")"}) {
    Rig rig(std::string(R"({"name": "gate_skip", "two_stage": true, "gate": "scalar")") + extra + "}",
            Shaped::kLlama, 0.05f);
    const GateFit result = fit(rig, 1e-9);
    EXPECT_LT(result.error, 5e-3) << extra;
    EXPECT_GT(result.explained, 0.999) << extra;
    EXPECT_EQ(result.rows, 12 * 55 * 8);
    const std::string gate = std::string(extra).find("shared") == std::string::npos
                                 ? "gate_skip.layers.2.mlp."
                                 : "gate_skip.shared.mlp.";
    const std::vector<float> head = values_of(rig, gate + "head.weight"),
                             own = values_of(rig, gate + "weight");
    ASSERT_EQ(head.size(), own.size());
    for (size_t i = 0; i < head.size(); ++i) EXPECT_NEAR(head[i], own[i], 5e-3) << extra;
    EXPECT_NEAR(values_of(rig, gate + "head.bias")[0], values_of(rig, gate + "bias")[0], 2e-2);
  }
}

// The mean of a vector gate is not linear, but near: the head ranks rows as the gate does.
TEST(GateFit, FollowsTheMeanOfAVectorGate) {
  const std::string json = R"({"name": "gate_skip", "two_stage": )";
  Rig rig(json + "true}", Shaped::kLlama, 0.05f);
  const Rows rows = random_rows({40, 33}, 3);
  const std::vector<float> before = rig.fresh(rows).scores[3];
  const GateFit result = fit(rig, 1e-4, 30);
  EXPECT_GT(result.explained, 0.8);
  const std::vector<float> after = rig.fresh(rows).scores[3];
  *std::get<bool*>([&] {
    for (const Field& field : rig.policy->fields()) {
      if (field.name == "two_stage") return field.value;
    }
    throw UserError("two_stage");
  }()) = false;
  const std::vector<float> gate = rig.fresh(rows).scores[3];
  double was = 0, is = 0;
  for (size_t r = 0; r < gate.size(); ++r) {
    was += std::pow(double{before[r]} - double{gate[r]}, 2);
    is += std::pow(double{after[r]} - double{gate[r]}, 2);
  }
  EXPECT_LT(is, 0.2 * was);
}

TEST(GateFit, TheRidgeShrinks) {
  Rig loose(R"({"name": "gate_skip", "two_stage": true})"),
      tight(R"({"name": "gate_skip", "two_stage": true})");
  fit(loose, 1e-6);
  fit(tight, 10.0);
  const auto size = [](const std::vector<float>& w) {
    double sum = 0;
    for (const float one : w) sum += double{one} * double{one};
    return sum;
  };
  EXPECT_LT(size(values_of(tight, "gate_skip.layers.1.attention.head.weight")),
            0.5 * size(values_of(loose, "gate_skip.layers.1.attention.head.weight")));
}

TEST(GateFit, NeedsHeadsAndText) {
  Rig one(R"({"name": "gate_skip"})"), other(R"({"name": "random"})"),
      two(R"({"name": "gate_skip", "two_stage": true})");
  EXPECT_THROW(fit(one), UserError);
  EXPECT_THROW(fit(other), UserError);
  EXPECT_THROW(fit(two, 1e-4, 0), UserError);
  EXPECT_EQ(field_text([&] {
              for (const Field& field : two.policy->fields()) {
                if (field.name == "two_stage") return field;
              }
              throw UserError("two_stage");
            }()),
            "true");  // as it was, even after the failure
}

}  // namespace
}  // namespace fathom
