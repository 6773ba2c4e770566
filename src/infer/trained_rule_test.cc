#include "infer/trained_rule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "infer/calibrate_rig_test.h"
#include "infer/calibration_run.h"

namespace fathom {
namespace {

// A method that draws who runs in training serves with the share that ran there, unit by unit; its arg-max
// would run another one.
TEST(TrainedRule, KeepsTheShareOfTraining) {
  for (const char* json : {R"({"name": "skip_layer"})", R"({"name": "mixture_of_depths"})"}) {
    SCOPED_TRACE(json);
    Routed routed(json);
    std::vector<BatchRow> rows;
    for (int32_t sequence = 0; sequence < 4; ++sequence) {
      for (int32_t at = 0; at < 100; ++at)
        rows.push_back({(at * at + 31 * sequence) % 480, at, sequence, false});
    }
    const TrainingStep step{true, 5, 100, 0.6f};
    const TrainedRule rule = find_trained_rule(routed.ctx, routed.model, *routed.policy, rows, step);
    EXPECT_NEAR(rule.served, rule.trained, 0.02);
    EXPECT_GT(rule.trained, 0.2);
    const CalibrationRunner runner(routed.ctx, routed.model, *routed.policy, {});
    const std::vector<float> own(rule.thresholds.size(), NAN);
    if (routed.policy->name() == "mixture_of_depths") {  // untrained routers of SkipLayer draw for one half
      EXPECT_GT(std::abs(1 - runner.run({rows}, own).ran - rule.trained), 0.03f) << "the arg-max";
    }
    EXPECT_NEAR(1 - runner.run({rows}, rule.thresholds).ran, rule.trained, 0.02);
    const TrainedRule back = trained_rule_from_json(to_json(rule), std::ssize(rule.thresholds), "test");
    EXPECT_EQ(back.thresholds, rule.thresholds);
    EXPECT_EQ(back.trained, rule.trained);
    EXPECT_THROW(trained_rule_from_json(to_json(rule), 3, "test"), UserError);
    EXPECT_THROW(trained_rule_from_json(R"({"skip_ratio": 2})", 3, "test"), UserError);
  }
}

}  // namespace
}  // namespace fathom
