#include "report/heat_map.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "report/chart.h"
#include "report/colors.h"
#include "report/svg.h"

namespace fathom {
namespace {

constexpr double kHigh = 15, kLeft = 150, kTop = 62, kBottom = 96, kGap = 1.4;  // the gap in columns
constexpr size_t kSteps = 60;                                                   // of the colour key

// Where a panel's first column stands, in columns.
double offset_of(const HeatMap& map, size_t panel) {
  double at = 0;
  for (size_t p = 0; p < panel; ++p) at += static_cast<double>(map.panels[p].columns) + kGap;
  return at;
}

double all_columns(const HeatMap& map) {
  return offset_of(map, map.panels.size()) - kGap;
}

// Every column where few, else every fifth.
bool is_labelled(const HeatPanel& panel, size_t column) {
  return panel.columns <= 12 || column % 5 == 0;
}

// Of a cell: wider where there are few columns.
double cell_width(const HeatMap& map) {
  return std::clamp(560 / all_columns(map), 15.0, 48.0);
}

double share_of(const HeatMap& map, double value) {
  return map.high > map.low ? (value - map.low) / (map.high - map.low) : 1;
}

void draw_panel(Svg& svg, const HeatMap& map, size_t index) {
  const HeatPanel& panel = map.panels[index];
  const double cell = cell_width(map), left = kLeft + cell * offset_of(map, index);
  const double width = cell * static_cast<double>(panel.columns);
  svg.text({left + width / 2, kTop - 8}, panel.title, {.anchor = Anchor::kMiddle});
  for (size_t r = 0; r < map.rows.size(); ++r) {
    for (size_t c = 0; c < panel.columns; ++c) {
      const double value = panel.values[r * panel.columns + c];
      if (std::isnan(value)) continue;
      svg.rect({left + cell * static_cast<double>(c), kTop + kHigh * static_cast<double>(r)}, cell - 0.6,
               kHigh - 0.6, hex(ramp(share_of(map, value))),
               fmt::format("{} · {} {}: {:.4g}", map.rows[r], panel.title, c, value));
    }
  }
  const double below = kTop + kHigh * static_cast<double>(map.rows.size());
  for (size_t c = 0; c < panel.columns; ++c) {
    if (is_labelled(panel, c))
      svg.text({left + cell * (static_cast<double>(c) + 0.5), below + 14}, std::to_string(c),
               {.anchor = Anchor::kMiddle, .size = 10, .soft = true});
  }
  svg.text({left + width / 2, below + 32}, map.column_label, {.anchor = Anchor::kMiddle, .size = 11});
}

void draw_key(Svg& svg, const HeatMap& map, double top) {
  if (!map.low_name.empty()) {
    svg.rect({kLeft, top}, 12, 12, hex(ramp(0)));
    svg.text({kLeft + 18, top + 11}, map.low_name);
    svg.rect({kLeft + 120, top}, 12, 12, hex(ramp(1)));
    svg.text({kLeft + 138, top + 11}, map.high_name);
    return;
  }
  const double width = 240;
  for (size_t i = 0; i < kSteps; ++i) {
    const double share = static_cast<double>(i) / (kSteps - 1);
    svg.rect({kLeft + width * static_cast<double>(i) / kSteps, top}, width / kSteps + 0.5, 10,
             hex(ramp(share)));
  }
  svg.text({kLeft, top + 24}, tick_text(map.low), {.size = 11, .soft = true});
  svg.text({kLeft + width, top + 24}, tick_text(map.high),
           {.anchor = Anchor::kEnd, .size = 11, .soft = true});
  svg.text({kLeft + width + 12, top + 10}, map.value_label, {.size = 11});
}

}  // namespace

std::string to_svg(const HeatMap& map) {
  const double height = kTop + kBottom + kHigh * static_cast<double>(map.rows.size());
  const double width = std::max(kLeft + 520, kLeft + 20 + cell_width(map) * all_columns(map));
  Svg svg(width, height, map.title);
  svg.text({12, 22}, map.title, {.size = 14, .bold = true});
  for (size_t r = 0; r < map.rows.size(); ++r)
    svg.text({kLeft - 8, kTop + kHigh * (static_cast<double>(r) + 0.75)}, map.rows[r],
             {.anchor = Anchor::kEnd, .size = 11});
  for (size_t p = 0; p < map.panels.size(); ++p) draw_panel(svg, map, p);
  draw_key(svg, map, height - 40);
  return svg.str();
}

namespace {

// A panel's cells as lines of a table: x, y, colour. And its column numbers, as gnuplot's ticks.
void add_panel(const HeatMap& map, size_t index, std::string& cells, std::string& ticks) {
  const HeatPanel& panel = map.panels[index];
  for (size_t c = 0; c < panel.columns; ++c) {
    const double x = offset_of(map, index) + static_cast<double>(c);
    if (is_labelled(panel, c)) ticks += fmt::format("{}'{}' {:.5g}", ticks.empty() ? "" : ", ", c, x);
    for (size_t r = 0; r < map.rows.size(); ++r) {
      const float value = panel.values[r * panel.columns + c];
      if (std::isnan(value)) continue;
      const Rgb color = ramp(share_of(map, value));
      cells += fmt::format("{:.5g}\t{}\t{}\n", x, r, color.red * 65536 + color.green * 256 + color.blue);
    }
  }
}

// What stands beside the map: a scale in its colours, or two names.
std::string key_commands(const HeatMap& map) {
  if (!map.low_name.empty()) return "set key outside bottom center horizontal\n";
  std::string palette;
  for (int i = 0; i <= 8; ++i) palette += fmt::format("{}{} '{}'", i ? ", " : "", i, hex(ramp(i / 8.0)));
  return fmt::format("set palette defined ({})\nset cbrange [{:.10g}:{:.10g}]\nset cblabel {}\nunset key\n",
                     palette, map.low, map.high > map.low ? map.high : map.low + 1,
                     plot_string(map.value_label));
}

std::string key_plots(const HeatMap& map) {
  if (map.low_name.empty()) return "NaN with points palette notitle";
  const auto box = [](Rgb color, const std::string& name) {
    return fmt::format("NaN with points pt 5 ps 2 lc rgb '{}' title {}", hex(color), plot_string(name));
  };
  return box(ramp(0), map.low_name) + ", " + box(ramp(1), map.high_name);
}

}  // namespace

Plot to_plot(const HeatMap& map) {
  const auto rows = static_cast<double>(map.rows.size());
  Plot plot{.commands = {},
            .tables = {"", ""},
            .width = std::max(820.0, 330 + 1.25 * cell_width(map) * all_columns(map)),
            .height = 150 + 1.25 * kHigh * rows};
  std::string ticks, titles;
  for (size_t p = 0; p < map.panels.size(); ++p) {
    add_panel(map, p, plot.tables[0], ticks);
    titles += fmt::format("set label {} at {:.5g},-1.1 center\n", plot_string(map.panels[p].title),
                          offset_of(map, p) + static_cast<double>(map.panels[p].columns) / 2 - 0.5);
  }
  for (size_t r = 0; r < map.rows.size(); ++r)
    plot.tables[1] += fmt::format("{}\t{}\n", r, plot_cell(map.rows[r]));
  plot.commands = fmt::format(
      "set title {} font ',12' offset 0,2\n{}set border 0\nset xrange [-0.5:{:.5g}]\nset yrange "
      "[{:.5g}:-0.5]\n"
      "set xlabel {}\nset xtics scale 0 ({})\nset ytics scale 0\n{}set tmargin 6\n"
      "plot TABLE0 using 1:2:(0.48):(0.48):3 with boxxyerror fs solid noborder lc rgb variable notitle, "
      "TABLE1 using (NaN):1:ytic(2) with points notitle, {}\n",
      plot_string(map.title), key_commands(map), all_columns(map) - 0.5, rows - 0.5,
      plot_string(map.column_label), ticks, titles, key_plots(map));
  return plot;
}

}  // namespace fathom
