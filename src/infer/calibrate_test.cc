#include "infer/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/flops.h"
#include "skip/tiny_model_test.h"

namespace fathom {
namespace {

// A method whose routers differ between rows, on a small random model.
struct Routed {
  Context ctx{{.threads = 2}};
  Model model = tiny_model(tiny_config());
  std::unique_ptr<MethodPolicy> policy;

  explicit Routed(const std::string& json) : policy(MethodPolicy::from_json(json, "test")) {
    uint32_t stream = 900;
    for (const MethodParameter& parameter : policy->parameters(model.config))
      add_noise(*parameter.tensor, 0.2f, 3, stream++);
  }

  // β over these rows at these thresholds.
  float achieved(const Rows& rows, const std::vector<float>& thresholds) {
    const ArenaScope scope(ctx);
    const auto base = policy->make_state(ctx, model.config, 64);
    auto& state = static_cast<SkipState&>(*base);
    state.thresholds = Tensor::from(ctx, thresholds, {static_cast<int64_t>(thresholds.size())});
    Rows quiet = rows;
    for (BatchRow& row : quiet) row.wants_logits = false;
    const Batch batch = make_batch(ctx, quiet);
    const Work before = ctx.counters().total();
    forward(ctx, model, batch, FreshPass{}, *policy, state);
    const Work work = ctx.counters().total() - before;
    return static_cast<float>(work.madds - work.policy_madds) /
           static_cast<float>(dense_work(model.config, rows).block_madds);
  }
};

Rows quiet_rows(int sequences, uint64_t seed) {
  Rows rows = random_rows(std::vector<int>(static_cast<size_t>(sequences), 60), seed);
  for (BatchRow& row : rows) row.wants_logits = false;
  return rows;
}

class Calibrated : public testing::TestWithParam<const char*> {};

TEST_P(Calibrated, MeetsItsBudgets) {
  Routed routed(GetParam());
  const std::vector<Rows> batches{quiet_rows(12, 1)};
  CalibrateOptions options;
  options.budgets = {0.8f, 0.9f, 0.7f};
  options.k_type = options.v_type = DType::kF32;  // as achieved() has it
  const Calibration table = calibrate(routed.ctx, routed.model, *routed.policy, batches, options);
  ASSERT_EQ(table.points.size(), 3u);
  EXPECT_EQ(table.weight_type, "f32");
  const Rows other = quiet_rows(12, 2);
  for (const CalibrationPoint& point : table.points) {
    EXPECT_NEAR(point.achieved, point.budget, 0.01) << point.budget;
    EXPECT_NEAR(routed.achieved(batches[0], point.thresholds), point.achieved, 0.01) << point.budget;
    EXPECT_NEAR(routed.achieved(other, point.thresholds), point.budget, 0.03) << point.budget;
  }
  EXPECT_GT(table.points[0].budget, table.points[1].budget);
  for (size_t unit = 0; unit < table.points[0].thresholds.size(); ++unit)
    EXPECT_LE(table.points[0].thresholds[unit], table.points[2].thresholds[unit]);
  EXPECT_NEAR(routed.achieved(other, table.thresholds(0.75f)), 0.75f, 0.03);
  EXPECT_FLOAT_EQ(routed.achieved(other, table.thresholds(1.0f)), 1.0f);
  EXPECT_THROW(table.thresholds(0.5f), UserError);
}

INSTANTIATE_TEST_SUITE_P(Methods, Calibrated,
                         testing::Values(R"({"name": "priced"})", R"({"name": "gate_skip"})",
                                         R"({"name": "gate_skip", "gate": "scalar", "protect": [0, 3]})",
                                         R"({"name": "skip_layer"})", R"({"name": "mixture_of_depths"})",
                                         R"({"name": "mind_skip", "level": "token", "layers": [0, 1, 2, 3],
                                             "unit": "block"})"));

TEST(Calibration, AStaticListHasNothingToTurn) {
  Routed routed(R"({"name": "harm_order", "drop": [3]})");
  const std::vector<Rows> batches{quiet_rows(2, 1)};
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, batches, {}), UserError);
  EXPECT_THROW(calibrate(routed.ctx, routed.model, *routed.policy, {}, {}), UserError);
}

TEST(Calibration, GoesThroughJson) {
  Calibration table;
  table.weight_type = "q4_1";
  table.points = {{0.9f, 0.901f, {0.25f, -INFINITY}}, {0.8f, 0.79f, {0.5f, 0.1f}}};
  const std::vector<Calibration> back = calibrations_from_json(calibrations_to_json({&table, 1}), 2, "table");
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].weight_type, "q4_1");
  ASSERT_EQ(back[0].points.size(), 2u);
  EXPECT_EQ(back[0].points[0].thresholds, table.points[0].thresholds);
  EXPECT_EQ(back[0].points[1].achieved, 0.79f);
  EXPECT_FLOAT_EQ(back[0].thresholds(0.85f)[0], 0.375f);
}

TEST(Calibration, HostileTablesAreRefused) {
  const auto refused = [](const char* text) {
    EXPECT_THROW(calibrations_from_json(text, 2, "table"), UserError) << text;
  };
  refused("[]");
  refused("{");
  refused(R"({"q4_1": 3})");
  refused(R"({"q4_1": []})");
  refused(R"({"q4_1": [{"budget": 0.9}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, "x"]}]})");
  refused(R"({"q4_1": [{"budget": 2, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.8, "achieved": 0.9, "thresholds": [1, 1]},
                       {"budget": 0.9, "achieved": 0.9, "thresholds": [1, 1]}]})");
  EXPECT_TRUE(calibrations_from_json("{}", 2, "table").empty());
}

}  // namespace
}  // namespace fathom
