#include "skip/gate_fit.h"

#include <gtest/gtest.h>

#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

std::vector<Batch> batches_of(Rig& rig, int texts) {
  std::vector<Batch> batches;
  for (int i = 0; i < texts; ++i)
    batches.push_back(make_batch(rig.ctx, random_rows({30, 25}, 400 + static_cast<uint64_t>(i))));
  return batches;
}

Field field_of(Rig& rig, const std::string& name) {
  for (const Field& field : rig.policy->fields()) {
    if (field.name == name) return field;
  }
  throw UserError(name);
}

std::vector<GateHead> heads_of(Rig& rig) {
  std::vector<GateHead> heads;
  for (const MethodParameter& parameter : rig.policy->parameters(rig.model.config)) {
    if (parameter.name.ends_with(".head.weight")) heads.push_back({*parameter.tensor, {}});
    if (parameter.name.ends_with(".head.bias")) heads.back().bias = *parameter.tensor;
  }
  return heads;
}

GateFit fit(Rig& rig, double ridge = 1e-4, int texts = 12) {
  const ArenaScope scope(rig.ctx);
  const std::vector<GateHead> heads = heads_of(rig);
  bool& two_stage = *std::get<bool*>(field_of(rig, "two_stage").value);
  const GateReading reading{*rig.policy, field_text(field_of(rig, "gate_input")) == "residual"};
  two_stage = false;  // the gates decide: their score is ḡ
  const GateFit result = fit_gate_heads(rig.ctx, reading, rig.model, batches_of(rig, texts), heads, ridge);
  two_stage = true;
  return result;
}

std::vector<std::string> finish(Rig& rig, int texts) {
  const ArenaScope scope(rig.ctx);
  return rig.policy->finish(rig.ctx, rig.model, batches_of(rig, texts));
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
  *std::get<bool*>(field_of(rig, "two_stage").value) = false;
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

TEST(GateFit, EndsTheTrainingOfTwoStageGates) {
  Rig one(R"({"name": "gate_skip"})"), other(R"({"name": "random"})"),
      two(R"({"name": "gate_skip", "two_stage": true})"),
      fitted(R"({"name": "gate_skip", "two_stage": true})"),
      blended(R"({"name": "random", "blend": "gate_skip", "gate_skip": {"two_stage": true}})");
  EXPECT_FALSE(one.policy->fits_at_end());
  EXPECT_FALSE(other.policy->fits_at_end());
  EXPECT_TRUE(blended.policy->fits_at_end());
  EXPECT_EQ(finish(one, 2), std::vector<std::string>());
  ASSERT_TRUE(two.policy->fits_at_end());
  const std::vector<std::string> said = finish(two, 2);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].find("gate heads fitted to 880 rows: "), 0u) << said[0];
  fit(fitted, 1e-4, 2);
  const std::string head = "gate_skip.layers.1.attention.head.weight";
  EXPECT_EQ(values_of(two, head), values_of(fitted, head));
}

TEST(GateFit, NeedsText) {
  Rig rig(R"({"name": "gate_skip", "two_stage": true})");
  EXPECT_THROW(finish(rig, 0), UserError);
  EXPECT_EQ(field_text(field_of(rig, "two_stage")), "true");  // as it was, even after the failure
}

}  // namespace
}  // namespace fathom
