// The tables of budgets: what lies between two points, and their JSON.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "infer/calibrate.h"

namespace fathom {
namespace {

// Also where a unit that goes at a point goes at none above it: nothing lies between "never" and "always".
TEST(Calibration, ABudgetOfTheTableHasItsPointsThresholds) {
  constexpr float kAlways = std::numeric_limits<float>::max(), kNever = -INFINITY;
  Calibration table;
  table.points = {{1, 1, NAN, {kNever, kNever, kNever}, 1},
                  {0.95f, 0.94f, NAN, {kAlways, kNever, kNever}, 1},
                  {0.9f, 0.91f, NAN, {kAlways, kNever, 0.5f}, 1}};
  for (const CalibrationPoint& point : table.points)
    EXPECT_EQ(table.thresholds(point.budget), point.thresholds) << point.budget;
  EXPECT_EQ(table.thresholds(0.92f), table.points[1].thresholds);
}

TEST(Calibration, GoesThroughJson) {
  Calibration table;
  table.weight_type = "q4_1";
  table.points = {{0.9f, NAN, NAN, {0.25f, -INFINITY}},
                  {0.8f, 0.79f, 0.81f, {0.5f, 0.1f}, 0.6f, {0.8f, 0.82f}}};
  table.kinds = {"news", "novels"};
  table.qualities = {{"kl", 0.1f, 0.9f, 0.08f, "novels"}, {"ppl", 1.1f, 0.8f, 1.09f, "news"}};
  const std::vector<Calibration> back = calibrations_from_json(calibrations_to_json({&table, 1}), 2, "table");
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].weight_type, "q4_1");
  ASSERT_EQ(back[0].points.size(), 2u);
  EXPECT_EQ(back[0].points[0].thresholds, table.points[0].thresholds);
  EXPECT_EQ(back[0].points[1].achieved, 0.79f);
  EXPECT_EQ(back[0].points[1].checked, 0.81f);
  EXPECT_EQ(back[0].points[1].held, 0.6f);
  EXPECT_EQ(back[0].kinds, table.kinds);
  EXPECT_EQ(back[0].points[1].of_kinds, table.points[1].of_kinds);
  ASSERT_EQ(back[0].qualities.size(), 2u);
  EXPECT_EQ(back[0].qualities[1].measure, "ppl");
  EXPECT_EQ(back[0].qualities[1].bound, 1.09f);
  EXPECT_EQ(back[0].qualities[1].kind, "news");
  // A limit is kept by what keeps a stricter one.
  EXPECT_EQ(back[0].budget_for("kl", 0.1f), 0.9f);
  EXPECT_EQ(back[0].budget_for("kl", 0.3f), 0.9f);
  EXPECT_THROW(back[0].budget_for("kl", 0.05f), UserError);
  EXPECT_EQ(back[0].budget_for("ppl", 1.1f), 0.8f);
  // Tables of older adapters: the list of points alone.
  EXPECT_EQ(calibrations_from_json(R"({"f32": [{"budget": 0.9, "thresholds": [1, 2]}]})", 2, "table")[0]
                .points[0]
                .thresholds[1],
            2);
  EXPECT_TRUE(std::isnan(back[0].points[0].held));
  EXPECT_TRUE(std::isnan(back[0].points[0].checked));
  EXPECT_TRUE(std::isnan(back[0].points[0].achieved));
  EXPECT_FLOAT_EQ(back[0].thresholds(0.85f)[0], 0.375f);
}

TEST(Calibration, SteeringGoesThroughJsonAndLiesBetweenPoints) {
  Calibration table;
  table.weight_type = "f32";
  table.points = {{0.9f, 0.9f, NAN, {0.2f, -INFINITY}}, {0.7f, 0.7f, NAN, {0.4f, -INFINITY}}};
  table.points[0].steering = {0.8f, -1, 1, 0, 2, 0, 4, 0};
  table.points[1].steering = {0.6f, -1, 2, 0, 4, 0, 6, 0};
  const Calibration back = calibrations_from_json(calibrations_to_json({&table, 1}), 2, "table")[0];
  const std::vector<float> got = back.thresholds(0.8f), want{0.3f, -INFINITY, 0.7f, -1, 1.5f, 0, 3, 0, 5, 0};
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_FLOAT_EQ(got[i], want[i]) << i;
  EXPECT_EQ(back.thresholds(0.7f)[2], 0.6f);
}

TEST(Calibration, OlderSteeringHasNoStarts) {
  const Calibration table = calibrations_from_json(
      R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 2], "steering": [3, 4, 5, 6, 7, 8]}]})", 2, "table")[0];
  EXPECT_EQ(table.thresholds(0.9f), (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 0, 0}));
}

TEST(Calibration, HostileTablesAreRefused) {
  const auto refused = [](const char* text) {
    EXPECT_THROW(calibrations_from_json(text, 2, "table"), UserError) << text;
  };
  refused("[]");
  refused("{");
  refused(R"({"q4_1": 3})");
  refused(R"({"q4_1": {}})");
  refused(R"({"q4_1": {"points": []}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "kinds": 3}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "kinds": [3]}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1], "kinds": ["x"]}]}})");
  refused(
      R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "qualities": [{"measure": "kl"}]}})");
  refused(R"({"q4_1": {"points": [{"budget": 0.9, "thresholds": [1, 1]}], "qualities": [{"measure": "kl",
            "limit": 0.1, "budget": 2, "bound": 0.1, "kind": "x"}]}})");
  refused(R"({"q4_1": []})");
  refused(R"({"q4_1": [{"budget": 0.9}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, "x"]}]})");
  refused(R"({"q4_1": [{"budget": 2, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.8, "achieved": 0.9, "thresholds": [1, 1]},
                       {"budget": 0.9, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 1e300, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "checked": "x", "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, 1e300]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "thresholds": [1, NaN]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "achieved": 0.9, "held": 1.5, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": -0.9, "achieved": 0.9, "thresholds": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1, 1, 1, 1, "x"]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1, 1, 1, 1, 1, 1]}]})");
  refused(R"({"q4_1": [{"budget": 0.9, "thresholds": [1, 1], "steering": [1, 1, 1, 1, 1, 1]},
                       {"budget": 0.8, "thresholds": [1, 1]}]})");
  EXPECT_TRUE(calibrations_from_json("{}", 2, "table").empty());
}

}  // namespace
}  // namespace fathom
