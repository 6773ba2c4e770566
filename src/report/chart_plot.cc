#include <algorithm>

#include "base/format.h"
#include "report/chart.h"
#include "report/colors.h"

namespace fathom {
namespace {

std::string axis_commands(const char* name, const Axis& axis) {
  std::string out = fmt::format("set {0}range [{1:.10g}:{2:.10g}]\nset {0}label {3}\n", name, axis.low,
                                axis.high, plot_string(axis.label));
  out += fmt::format("set {}tics nomirror out{} (", name, axis.turned ? " rotate by -45" : "");
  for (size_t i = 0; i < axis.ticks.size(); ++i)
    out += fmt::format("{}{} {:.10g}", i ? ", " : "", plot_string(axis.ticks[i].second), axis.ticks[i].first);
  return out + ")\n";
}

// Columns: x, y, error, radius, label. A point that is not there is an empty line, which breaks a line.
std::string table_of(const Series& series, double shift) {
  std::string out;
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (std::isnan(series.y[i])) {
      out += "\n";
      continue;
    }
    const double error = series.error.empty() ? 0 : series.error[i];
    const double area = series.area.empty() ? 0 : series.area[i];
    out += fmt::format("{:.10g}\t{:.10g}\t{:.10g}\t{:.4g}\t{}\n", series.x[i] + shift, series.y[i],
                       std::isnan(error) ? 0 : error, std::max(0.9, 6 * std::sqrt(area)),
                       plot_cell(series.labels.empty() ? "" : series.labels[i]));
  }
  return out;
}

std::string plot_of(const Series& series, size_t table, double bar_width) {
  const std::string color = hex(series_color(series.color)), title = plot_string(series.name);
  const std::string named = series.name.empty() ? "notitle" : "title " + title;
  const std::string file = fmt::format("TABLE{}", table);
  std::string out;
  // Bars first: gnuplot clears the ground under the points that it draws at them, of whatever size.
  if (!series.error.empty())
    out = fmt::format("{} using 1:2:3 with yerrorbars ps 0 lw 1.4 lc rgb '{}' notitle, ", file, color);
  switch (series.style) {
    case Series::Style::kLine:
      out += fmt::format("{} using 1:2 with lines lw 2 dt {} lc rgb '{}' {}", file, series.dash % 4 + 1,
                         color, named);
      if (series.marked)
        out += fmt::format(", {} using 1:2 with points pt 7 ps 0.9 lc rgb '{}' notitle", file, color);
      break;
    case Series::Style::kPoints:
      out += fmt::format("{} using 1:2:4 with points pt 7 ps variable lc rgb '{}{}' {}", file,
                         series.area.empty() ? "#" : "#70", color.substr(1), named);
      break;
    case Series::Style::kBars:
      out += fmt::format("{} using 1:2:({:.5g}) with boxes fs solid noborder lc rgb '{}' {}", file, bar_width,
                         color, named);
      break;
    case Series::Style::kArea:  // with an edge, so that one before another is seen as such
      out += fmt::format(
          "{0} using 1:2 with filledcurves y={1:.10g} lc rgb '{2}' fs solid 0.75 noborder {3}, "
          "{0} using 1:2 with lines lw 1.4 lc rgb '#ffffff' notitle",
          file, series.base, color, named);
      break;
  }
  if (!series.labels.empty())
    out += fmt::format(", {} using 1:2:5 with labels left offset char 0.9,0 font ',9' notitle", file);
  return out;
}

}  // namespace

Plot to_plot(const Chart& given) {
  const Chart chart = with_limits(given);
  Plot plot{.commands = {}, .tables = {}, .width = chart.width * 1.25, .height = chart.height * 1.25};
  plot.commands = fmt::format(
      "set title {} font ',12'\nset border 3 lc rgb '#8a8a8f'\nset tics textcolor rgb '#1d1d1f'\nset grid "
      "ytics lc rgb '#dcdce0'\n"
      "set key top right outside horizontal noenhanced\n",
      plot_string(chart.title));
  plot.commands += axis_commands("x", chart.x) + axis_commands("y", chart.y);
  const auto is_bars = [](const Series& series) { return series.style == Series::Style::kBars; };
  const auto places = std::count_if(chart.series.begin(), chart.series.end(), is_bars);
  const double width = kBarsShare / static_cast<double>(std::max<ptrdiff_t>(1, places));
  double place = 0;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const double shift = is_bars(series) ? width * (place++ + 0.5) - kBarsShare / 2 : 0;
    plot.tables.push_back(table_of(series, shift));
    plot.commands += (i ? ", " : "plot ") + plot_of(series, i, width);
  }
  plot.commands += chart.series.empty() ? "plot NaN notitle\n" : "\n";
  return plot;
}

}  // namespace fathom
