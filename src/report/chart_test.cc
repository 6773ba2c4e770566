#include "report/chart.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "report/colors.h"
#include "report/heat_map.h"
#include "support/xml.h"

namespace fathom {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Chart, TicksAreRound) {
  EXPECT_EQ(round_ticks(0, 1, 5), (std::vector<double>{0, 0.2, 0.4, 0.6000000000000001, 0.8, 1}));
  EXPECT_EQ(round_ticks(-3, 47, 5), (std::vector<double>{0, 10, 20, 30, 40}));
  EXPECT_EQ(tick_text(0.6000000000000001), "0.6");
  EXPECT_EQ(tick_text(-1e-17), "0");
}

TEST(Chart, LimitsHoldEverything) {
  Chart chart{.title = "t"};
  chart.series.push_back({.x = {1, 2, 3}, .y = {5, NAN, 9}, .error = {1, 0, 2}});
  const Chart line = with_limits(chart);
  EXPECT_LT(line.y.low, 4);
  EXPECT_GT(line.y.high, 11);
  chart.series[0].style = Series::Style::kBars;
  EXPECT_EQ(with_limits(chart).y.low, 0) << "bars stand on their base";
  EXPECT_LT(with_limits(chart).x.low, 0.5) << "half a bar beside the first";
  const Chart empty = with_limits({.title = "nothing"});
  EXPECT_GT(empty.x.high, empty.x.low);
}

// Every point of every style is drawn, and hostile names stay names.
TEST(Chart, SvgIsWellFormedAndComplete) {
  const std::string evil = "</svg><script>'\"&`x`";
  Chart chart{.title = evil};
  chart.x.label = evil;
  chart.x.ticks = {{0, evil}, {1, "b"}};
  chart.series = {{.name = evil, .x = {0, 1, 2}, .y = {1, NAN, 2}, .error = {0.1, 0.1, 0.1}},
                  {.name = "p",
                   .style = Series::Style::kPoints,
                   .x = {0, 1},
                   .y = {1, 3},
                   .area = {1, 0.1},
                   .labels = {evil, ""}},
                  {.name = "b", .style = Series::Style::kBars, .x = {0, 1, 2}, .y = {1, 2, NAN}},
                  {.name = "a", .style = Series::Style::kArea, .x = {0, 1, 2}, .y = {1, 2, 1}}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_EQ(count_of(svg, "<circle"), 2u);
  EXPECT_EQ(count_of(svg, "<polygon"), 1u);
  EXPECT_EQ(count_of(svg, "<title>b: "), 2u) << "bars";
  const Plot plot = to_plot(chart);
  EXPECT_EQ(plot.tables.size(), 4u);
  EXPECT_EQ(plot.commands.find('`'), std::string::npos)
      << "gnuplot would run what stands between two of them";
  EXPECT_EQ(count_of(plot.commands, "'") % 2, 0u);
}

TEST(HeatMap, EveryCellThatIsThere) {
  HeatMap map{
      .title = "<map>", .column_label = "layer", .value_label = "v", .rows = {"a", "</text>"}, .panels = {}};
  map.panels.push_back({"one", 3, {0, 0.5f, 1, NAN, 0.25f, 2}});
  map.panels.push_back({"two", 1, {1, 0}});
  const std::string svg = to_svg(map);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(count_of(svg, "<title>a · "), 4u);
  EXPECT_EQ(count_of(svg, "<title>&lt;/text&gt; · "), 3u) << "NaN is no cell";
  const Plot plot = to_plot(map);
  EXPECT_EQ(count_of(plot.tables[0], "\n"), 7u);
}

TEST(Colors, BrightnessRises) {
  double before = -1;
  for (int i = 0; i <= 20; ++i) {
    const Rgb c = ramp(i / 20.0);
    const double brightness = 0.299 * c.red + 0.587 * c.green + 0.114 * c.blue;
    EXPECT_GT(brightness, before);
    before = brightness;
  }
  EXPECT_EQ(hex(ramp(-1)), hex(ramp(0)));
  EXPECT_EQ(hex(ramp(2)), "#ffea46");
}

// A PNG begins as a PNG does; what gnuplot refuses is said.
TEST(Gnuplot, MakesPngOrSaysWhyNot) {
  if (!why_no_gnuplot().empty()) GTEST_SKIP() << why_no_gnuplot();
  const std::string path = testing::TempDir() + "fathom-gnuplot-test-" + std::to_string(getpid()) + ".png";
  Chart chart{.title = "`touch /tmp/fathom-owned` ' \" \\"};
  chart.series = {{.style = Series::Style::kPoints,
                   .x = {1, 2},
                   .y = {3, 4},
                   .labels = {"`touch /tmp/fathom-owned`", "\"\t"}}};
  write_png(path, to_plot(chart));
  std::string bytes(8, ' ');
  FILE* file = std::fopen(path.c_str(), "rb");
  ASSERT_TRUE(file);
  EXPECT_EQ(std::fread(bytes.data(), 1, 8, file), 8u);
  std::fclose(file);
  EXPECT_EQ(bytes, "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(std::remove("/tmp/fathom-owned"), -1) << "a title was run as a command";
  write_png(path, to_plot(Chart{.title = "nothing"}));
  EXPECT_THROW(write_png(path, {.commands = "no such command\n", .tables = {}}), std::runtime_error);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace fathom
