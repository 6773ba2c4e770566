// What the figures show is what the trace says.
#include "report/inspection_figures.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "report/colors.h"
#include "report/inspected_test.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

constexpr size_t kRows = 24, kLayers = 4;

TEST(InspectionFigures, MapsHoldEveryUnitOfEveryToken) {
  Inspected it(R"({"name": "gate_skip"})");
  const InspectionStats stats(it.in);
  const HeatMap ran = token_map(stats, it.trace, Shown::kRan),
                scores = token_map(stats, it.trace, Shown::kValues);
  ASSERT_EQ(ran.rows.size(), kRows);
  EXPECT_EQ(ran.rows[7], "·house");
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (const size_t ffn : {0, 1}) {
        const auto unit = static_cast<int64_t>(2 * layer + ffn);
        EXPECT_EQ(ran.panels[ffn].values[r * kLayers + layer], it.trace.ran(r, unit) ? 1.0f : 0.0f);
        EXPECT_EQ(scores.panels[ffn].values[r * kLayers + layer], it.trace.score(r, unit));
      }
    }
  }
}

TEST(InspectionFigures, ClassesAreAveragedApart) {
  Inspected it(R"({"name": "priced"})");
  const InspectionStats stats(it.in);
  const HeatMap map = class_map(stats);
  const Table table = stats.class_table();
  ASSERT_EQ(table.rows.size(), map.rows.size());
  ASSERT_GE(map.rows.size(), 3u);
  int64_t tokens = 0;
  for (size_t c = 0; c < map.rows.size(); ++c) {
    double sum[2 * kLayers] = {}, skipped = 0;
    int64_t count = 0;
    for (size_t r = 0; r < kRows; ++r) {
      if (name_of(stats.token_class(r)) != table.rows[c][0]) continue;
      ++count;
      for (size_t u = 0; u < 2 * kLayers; ++u) {
        sum[u] += double{it.trace.score(r, static_cast<int64_t>(u))};
        skipped += it.trace.ran(r, static_cast<int64_t>(u)) ? 0 : 0.5;
      }
    }
    tokens += count;
    EXPECT_EQ(map.rows[c], fmt::format("{} ({})", table.rows[c][0], count));
    EXPECT_EQ(table.rows[c][1], std::to_string(count));
    EXPECT_EQ(table.rows[c][4], fmt::format("{:.1f}", skipped / static_cast<double>(count)));
    for (size_t u = 0; u < 2 * kLayers; ++u)
      EXPECT_NEAR(map.panels[u % 2].values[c * kLayers + u / 2], sum[u] / static_cast<double>(count), 1e-5);
  }
  EXPECT_EQ(tokens, static_cast<int64_t>(kRows));
}

TEST(InspectionFigures, ChartsCountWhatWasSkipped) {
  Inspected it(R"({"name": "mind_skip", "level": "token"})");
  const InspectionStats stats(it.in);
  const Chart skips = skip_chart(stats);
  ASSERT_EQ(skips.series.size(), 2u);
  double all = 0;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    for (const size_t ffn : {0, 1}) {
      double skipped = 0;
      for (size_t r = 0; r < kRows; ++r) skipped += !it.trace.ran(r, static_cast<int64_t>(2 * layer + ffn));
      EXPECT_NEAR(skips.series[ffn].y[layer], skipped / kRows, 1e-12)
          << layer << (ffn ? " FFN" : " attention");
      all += skipped;
    }
  }
  EXPECT_GT(all, 0);
  const Chart bubbles = bubble_chart(stats);
  double places = 0, layers = 0;  // tokens 0 to 3 stand three times in the text, the others twice
  for (const Series& series : bubbles.series) {
    for (size_t i = 0; i < series.y.size(); ++i) {
      places += 3 * series.area[i];
      layers += 3 * series.area[i] * series.y[i];
    }
  }
  EXPECT_NEAR(places, kRows, 1e-9);
  EXPECT_NEAR(layers, all / 2, 1e-9);
}

TEST(InspectionFigures, TokensAtBothEndsHaveTheirErrors) {
  Inspected it(R"({"name": "gate_skip"})");
  const InspectionStats stats(it.in);
  const Chart chart = token_chart(stats);
  ASSERT_EQ(chart.series.size(), 2u);
  ASSERT_EQ(chart.x.ticks.size(), 10u);
  EXPECT_GT(chart.series[0].y.front(), chart.series[1].y.back());
  double value[2] = {};
  for (const size_t i : {0, 1}) {
    for (int64_t u = 0; u < 8; ++u) value[i] += double{it.trace.score(7 + 10 * i, u)} / 8;
  }
  bool found = false;
  for (size_t i = 0; i < 10; ++i) {
    if (chart.x.ticks[i].second != "·house") continue;
    const Series& series = chart.series[i / 5];
    EXPECT_NEAR(series.y[i % 5], (value[0] + value[1]) / 2, 1e-6);
    EXPECT_NEAR(series.error[i % 5], std::abs(value[0] - value[1]) / 2, 1e-6);
    found = true;
  }
  EXPECT_TRUE(found);
}

TEST(InspectionFigures, TheTraceHasEveryNumber) {
  Inspected it(R"({"name": "priced"})");
  const InspectionStats stats(it.in);
  const auto trace = nlohmann::json::parse(trace_json(it.in, stats));
  ASSERT_EQ(trace.at("units").size(), 2 * kLayers);
  for (size_t u = 0; u < 2 * kLayers; ++u) {
    const auto& unit = trace.at("units")[u];
    EXPECT_EQ(unit.at("layer"), u / 2);
    EXPECT_EQ(unit.at("unit"), u % 2 ? "ffn" : "attention");
    EXPECT_EQ(unit.at("threshold").get<float>(), it.in.thresholds[u]);
    double skipped = 0;
    for (size_t r = 0; r < kRows; ++r) skipped += !it.trace.ran(r, static_cast<int64_t>(u));
    EXPECT_NEAR(unit.at("skip_ratio"), skipped / kRows, 1e-12);
  }
  EXPECT_TRUE(trace.at("tokens")[0].at("logprob").is_null());
  for (size_t r = 1; r < kRows; ++r) {
    EXPECT_EQ(trace.at("tokens")[r].at("logprob").get<float>(), it.in.logprobs[r]);
    EXPECT_EQ(trace.at("tokens")[r].at("class"), name_of(stats.token_class(r)));
    EXPECT_EQ(trace.at("tokens")[r].at("id"), r % 10);
  }
}

// The text of the page: who ran most on the lightest ground, who ran least on the darkest.
TEST(InspectionFigures, TheTextIsShadedByDepth) {
  Inspected it(R"({"name": "gate_skip"})");
  const TemporaryFolder folder;
  Figures figures(folder.at("page"));
  write_inspection(it.in, figures);
  const std::string html = file_text(folder.at("page") + "/index.html");
  double least = INFINITY;
  for (size_t r = 0; r < kRows; ++r) least = std::min(least, it.trace.depth(r));
  size_t at = html.find("class=\"mono\" style=\"max-width");
  for (size_t r = 0; r < kRows; ++r) {
    at = html.find("<span style=\"background:", at + 1);
    ASSERT_NE(at, std::string::npos);
    const double share = (it.trace.depth(r) - least) / (kLayers - least);
    EXPECT_EQ(html.substr(at + 24, 7), hex(ramp(share))) << r;
    EXPECT_NE(html.substr(at, 200).find(fmt::format(": {:g} of 4 layers", it.trace.depth(r))),
              std::string::npos)
        << r;
  }
}

}  // namespace
}  // namespace fathom
