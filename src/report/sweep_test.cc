#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "report/sweep_figures.h"
#include "report/sweep_report.h"
#include "support/xml.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

SweepScore score(double value, double net, const char* metric = "acc") {
  SweepScore out;
  out.metrics = {{metric, value, 0.04}, {"acc_norm", value / 2, 0.03}};
  out.savings = {1 - net, net, net, net + 0.1};
  out.decode_tokens_per_s = 30 / net;
  out.dense_decode_tokens_per_s = 30;
  return out;
}

// Two methods and a dense model on two tasks, under names that would be markup.
std::vector<SweepPoint> some_points() {
  std::vector<SweepPoint> points;
  for (const std::string task : {"arc_challenge", "/data/</script>_x.jsonl"}) {
    const double more = task[0] == 'a' ? 0 : 0.1;
    points.push_back({.kind = PointKind::kDense,
                      .label = "dense",
                      .method = "dense",
                      .task = task,
                      .items = 20,
                      .score = score(0.5 + more, 1)});
    for (const std::string label : {"<b>priced</b>", "gates_50%"}) {
      for (const double budget : {0.9, 0.8}) {
        SweepPoint point{.kind = PointKind::kMethod,
                         .label = label,
                         .method = "priced",
                         .task = task,
                         .budget = budget,
                         .items = 20,
                         .score = score(budget / 2 + more, budget)};
        point.random_seeds = {score(0.26, budget), score(0.24, budget)};
        point.random = mean_of(point.random_seeds);
        point.shallow = score(0.3, budget);
        point.to_dense = {{"acc", budget / 2 - 0.5, 0.03}};
        point.to_random = {{"acc", budget / 2 + more - 0.25, 0.05}};
        point.to_shallow = {{"acc", budget / 2 + more - 0.3, 0.1}};
        points.push_back(point);
      }
    }
    points.push_back({.kind = PointKind::kShallow,
                      .label = "shallow",
                      .method = "shallow",
                      .task = task,
                      .dropped_units = 3,
                      .items = 20,
                      .score = score(0.4, 0.85)});
  }
  return points;
}

TEST(SweepReport, TheMeanIsOverTasks) {
  const std::vector<SweepPoint> means = mean_points(some_points());
  ASSERT_EQ(means.size(), 6u);
  EXPECT_NEAR(means[0].score.metrics[0].value, 0.55, 1e-12);
  EXPECT_NEAR(means[0].score.metrics[0].error, std::sqrt(2.0) * 0.04 / 2, 1e-12);
  EXPECT_NEAR(means[1].score.savings.net_flops, 0.9, 1e-12);
  EXPECT_NEAR(means[1].random->metrics[0].value, 0.25, 1e-12);
  EXPECT_TRUE(means[0].to_dense.empty());
  EXPECT_NEAR(means[1].to_random[0].value, 0.25, 1e-12);
  EXPECT_NEAR(means[1].to_random[0].error, std::sqrt(2.0) * 0.05 / 2, 1e-12);
  EXPECT_EQ(difference_text(means[1].to_random), "+0.250 ± 0.035 better");
  // A task with a perplexity has no share in it.
  std::vector<SweepPoint> points = some_points();
  for (SweepPoint& point : points) {
    if (point.task[0] == '/') point.score.metrics[0].name = "token_perplexity";
  }
  EXPECT_TRUE(mean_points(points).empty());
  // Nor has a point that a task does not have.
  points = some_points();
  points.erase(points.begin() + 1);
  EXPECT_EQ(mean_points(points).size(), 5u);
}

TEST(SweepReport, TheTableHoldsEveryColumn) {
  const Table table = point_table(of_task(some_points(), "arc_challenge"));
  ASSERT_EQ(table.rows.size(), 5u) << "depths are in the curves";
  EXPECT_EQ(table.columns[2], "acc");
  EXPECT_EQ(table.rows[0], (std::vector<std::string>{"dense", "–", "0.500 ± 0.040", "–", "–", "–", "–", "–",
                                                     "0.000", "1.000", "1.000", "1.100", "30.0", "1.00"}));
  EXPECT_EQ(table.rows[1], (std::vector<std::string>{
                               "<b>priced</b>", "0.9", "0.450 ± 0.040", "-0.050 ± 0.030 level",
                               "0.250 ± 0.041", "+0.200 ± 0.050 better", "0.300 ± 0.040",
                               "+0.150 ± 0.100 level", "0.100", "0.900", "0.900", "1.000", "33.3", "1.11"}));
  const std::string latex = to_latex(table, "50 % & more_", "tab:x");
  EXPECT_NE(latex.find("gates\\_50\\% & 0.9 & 0.450 $\\pm$ 0.040"), std::string::npos) << latex;
  EXPECT_NE(latex.find("\\caption{50 \\% \\& more\\_}"), std::string::npos) << latex;
  EXPECT_NE(latex.find("{lrrlrlrlrrrrrr}"), std::string::npos) << latex;
}

TEST(SweepReport, CurvesHoldEveryPointWithItsError) {
  const Chart chart = quality_chart(of_task(some_points(), "arc_challenge"));
  std::vector<std::string> names;
  for (const Series& series : chart.series) names.push_back(series.name);
  EXPECT_EQ(names, (std::vector<std::string>{"<b>priced</b>", "gates_50%", "random", "shallower", "dense"}));
  const Series& priced = chart.series[0];
  ASSERT_EQ(priced.x.size(), 2u);
  EXPECT_NEAR(priced.x[0], 10, 1e-9);
  EXPECT_NEAR(priced.x[1], 20, 1e-9);
  EXPECT_EQ(priced.y, (std::vector<double>{0.45, 0.4}));
  EXPECT_EQ(priced.error, (std::vector<double>{0.04, 0.04}));
  EXPECT_EQ(chart.series[2].x.size(), 4u) << "random, of both methods";
  EXPECT_EQ(chart.series[3].y, (std::vector<double>{0.5, 0.4})) << "shallower: from dense on";

  std::vector<SweepPoint> points = of_task(some_points(), "arc_challenge");
  for (SweepPoint& point : points) {
    for (SweepScore* one : {&point.score, point.random ? &*point.random : nullptr}) {
      if (one) one->metrics[0] = {"word_perplexity", std::exp(2.0), 0.1};
    }
  }
  const Chart log = quality_chart(points);
  EXPECT_NEAR(log.series[0].y[0], 2, 1e-12);
  EXPECT_NEAR(log.series[0].error[0], 0.1 / std::exp(2.0), 1e-12);

  std::vector<SweepPoint> timed = of_task(some_points(), "arc_challenge");
  timed[2].score.decode_tokens_per_s = NAN;
  const Chart by_time = quality_by_time_chart(timed);
  EXPECT_EQ(by_time.series.size(), chart.series.size());
  ASSERT_EQ(by_time.series[0].x.size(), 1u) << "one has no time";
  EXPECT_NEAR(by_time.series[0].x[0], 90, 1e-9);
  EXPECT_EQ(by_time.series[0].y, (std::vector<double>{0.45}));
  ASSERT_EQ(by_time.series[4].x.size(), 2u);
  EXPECT_NEAR(by_time.series[4].x[0], 100, 1e-9) << "dense";
  EXPECT_NEAR(by_time.series[4].x[1], 80, 1e-9) << "as far as the others go";
  for (SweepPoint& point : timed) {
    for (SweepScore* one : {&point.score, point.random ? &*point.random : nullptr})
      if (one) one->decode_tokens_per_s = NAN;
  }
  EXPECT_TRUE(quality_by_time_chart(timed).series.empty());

  const Chart speed = speed_chart(of_task(some_points(), "arc_challenge"));
  EXPECT_NEAR(speed.series[0].y.back(), 1 / 0.8, 1e-9);
  for (SweepPoint& point : points) point.score.metrics.clear();
  EXPECT_TRUE(quality_chart(points).series.empty()) << "nothing was judged";
}

TEST(SweepReport, DifferencesAreDrawnWithPairedErrors) {
  std::vector<SweepPoint> points = of_task(some_points(), "arc_challenge");
  const Chart chart = difference_chart(points);
  ASSERT_EQ(chart.series.size(), 5u) << "two methods, two baselines, and the level";
  EXPECT_EQ(chart.series[1].name, "<b>priced</b> against shallower");
  EXPECT_NEAR(chart.series[0].y[0], 0.2, 1e-12);
  EXPECT_EQ(chart.series[0].error, (std::vector<double>{0.05, 0.05}));
  EXPECT_EQ(chart.series[0].labels, (std::vector<std::string>{"better", "better"}));
  EXPECT_EQ(chart.series[1].labels[0], "level");
  // A perplexity: its logarithm, item by item, so that its error is paired, too.
  for (SweepPoint& point : points) {
    point.score.metrics = {{"perplexity", 20, 1, {10, 30}}};
    if (!point.random) continue;
    point.random->metrics = {{"perplexity", 40, 2, {20, 60}}};
    point.to_random = {paired_difference(point.score.metrics[0], point.random->metrics[0])};
    point.shallow.reset();
  }
  const Chart log = difference_chart(points);
  ASSERT_EQ(log.series.size(), 3u);
  EXPECT_NEAR(log.series[0].y[0], -std::log(2.0), 1e-12);
  EXPECT_NEAR(log.series[0].error[0], 0, 1e-12) << "half the loss on every item";
  for (SweepPoint& point : points) point.to_random.clear();
  EXPECT_TRUE(difference_chart(points).series.empty());
}

TEST(SweepReport, EveryFileIsThereAndParses) {
  const TemporaryFolder folder;
  const SweepInfo info{"</title><b>m", 2, "some", {{"a<", "</td>"}}};
  Figures figures(folder.path());
  write_sweep(info, some_points(), figures);
  const bool png = why_no_gnuplot().empty();
  EXPECT_EQ(figures.files().size(), png ? 24u : 14u);
  EXPECT_EQ(figures.files().back(), "index.html");
  for (const std::string& name : figures.files()) {
    const std::string text = read_text_file(folder.at(name));
    const bool markup = name.ends_with(".svg") || name.ends_with(".html");
    EXPECT_EQ(markup ? xml_fault(text) : "", "") << name;
    EXPECT_FALSE(markup && text.find("<b>priced") != std::string::npos) << name;
    EXPECT_EQ(text.substr(1, 3) == "PNG", name.ends_with(".png")) << name;
  }
  const auto json = nlohmann::json::parse(read_text_file(folder.at("results.json")));
  EXPECT_EQ(json["tasks"][1]["name"], "/data/</script>_x.jsonl");
  EXPECT_EQ(json["tasks"][0]["metric"], "acc");
  ASSERT_EQ(json["points"].size(), 12u);
  const auto& point = json["points"][1];
  EXPECT_EQ(point["kind"], "method");
  EXPECT_EQ(point["budget"], 0.9);
  EXPECT_EQ(point["metrics"]["acc"]["value"], 0.45);
  EXPECT_EQ(point["metrics"]["acc_norm"]["stderr"], 0.03);
  EXPECT_EQ(point["random"]["seeds"].size(), 2u);
  EXPECT_EQ(point["differences"]["dense"]["acc"]["verdict"], "level");
  EXPECT_EQ(point["differences"]["random"]["acc"]["stderr"], 0.05);
  EXPECT_EQ(point["differences"]["random"]["acc"]["verdict"], "better");
  EXPECT_NEAR(point["differences"]["shallow"]["acc"]["value"], 0.15, 1e-12);
  EXPECT_TRUE(json["points"][0]["differences"].empty());
  for (const char* key : {"skip_ratio", "block_flops", "net_flops", "net_bytes", "tokens_per_s",
                          "decode_tokens_per_s", "dense_decode_tokens_per_s", "speed_up"}) {
    EXPECT_TRUE(point[key].is_number()) << key;
    EXPECT_TRUE(point["random"][key].is_number()) << key;
    EXPECT_TRUE(point["shallow"][key].is_number()) << key;
  }
  EXPECT_EQ(json["points"][5]["dropped_units"], 3);
  EXPECT_TRUE(json["points"][5]["budget"].is_null());
}

}  // namespace
}  // namespace fathom
