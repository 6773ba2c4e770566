#include <algorithm>

#include "base/format.h"
#include "report/chart.h"
#include "report/colors.h"
#include "report/svg.h"

namespace fathom {
namespace {

constexpr double kLargestBubble = 22, kSmallPoint = 3.5;  // radius

struct Frame {
  const Chart& chart;
  double left = 74, right = 18, top = 40, bottom = 54;

  double at_x(double x) const {
    return left + (x - chart.x.low) / (chart.x.high - chart.x.low) * (chart.width - left - right);
  }
  double at_y(double y) const {
    return chart.height - bottom -
           (y - chart.y.low) / (chart.y.high - chart.y.low) * (chart.height - top - bottom);
  }
  Point at(double x, double y) const { return {at_x(x), at_y(y)}; }
};

void draw_axes(Svg& svg, const Frame& frame) {
  const Chart& chart = frame.chart;
  const double bottom = chart.height - frame.bottom, right = chart.width - frame.right;
  svg.text({frame.left, 20}, chart.title, {.size = 14, .bold = true});
  for (const auto& [value, text] : chart.y.ticks) {
    const double y = frame.at_y(value);
    svg.line({frame.left, y}, {right, y}, "");
    svg.text({frame.left - 8, y + 4}, text, {.anchor = Anchor::kEnd, .size = 11, .soft = true});
  }
  for (const auto& [value, text] : chart.x.ticks) {
    const double x = frame.at_x(value);
    svg.line({x, bottom}, {x, bottom + 4}, "");
    const Anchor anchor = chart.x.turned ? Anchor::kStart : Anchor::kMiddle;
    svg.text({x, bottom + 18}, text,
             {.anchor = anchor, .size = 11, .turned = chart.x.turned ? 45.0 : 0.0, .soft = true});
  }
  svg.line({frame.left, bottom}, {right, bottom}, "#8a8a8f");
  svg.text({(frame.left + right) / 2, chart.height - 8}, chart.x.label, {.anchor = Anchor::kMiddle});
  svg.text({16, (frame.top + bottom) / 2}, chart.y.label, {.anchor = Anchor::kMiddle, .turned = -90});
}

constexpr double kLegendLine = 20, kTextWidth = 7, kTitleWidth = 8.5;  // of a character, about

// Dashes tell lines apart where colours do not.
constexpr const char* kDashes[] = {"", "7 4", "2 3", "9 3 2 3"};

double mark_width(const Series& series) {
  return series.style == Series::Style::kLine ? 26 : 11;
}

// Of the mark, the name and the space after it.
double legend_width(const Series& series) {
  return series.name.empty() ? 0
                             : mark_width(series) + kTextWidth * static_cast<double>(series.name.size()) + 23;
}

void draw_entry(Svg& svg, Point at, const Series& series) {
  const std::string color = hex(series_color(series.color));
  const double width = mark_width(series);
  if (series.style == Series::Style::kLine) {
    const Point ends[] = {{at.x, at.y - 4}, {at.x + width, at.y - 4}};
    svg.path(ends, color, 2, kDashes[series.dash % 4]);
  } else {
    svg.rect({at.x, at.y - 10}, width, 11, color);
  }
  svg.text({at.x + width + 5, at.y}, series.name, {.size = 12});
}

// How many lines the legend takes under the title; 0: it stands in the title's, at the right.
int legend_lines(const Chart& chart, double left, double right) {
  double all = kTitleWidth * static_cast<double>(chart.title.size()), line = 0;
  int lines = 1;
  for (const Series& series : chart.series) {
    const double width = legend_width(series);
    all += width;
    if (line > 0 && line + width > chart.width - left - right) line = 0, ++lines;
    line += width;
  }
  return all <= chart.width - left - right ? 0 : lines;
}

void draw_legend(Svg& svg, const Frame& frame, int lines) {
  const double end = frame.chart.width - frame.right;
  double x = frame.left, y = 20;
  if (lines == 0) {
    x = end;
    for (const Series& series : frame.chart.series) x -= legend_width(series);
  } else {
    y += kLegendLine;
  }
  for (const Series& series : frame.chart.series) {
    const double width = legend_width(series);
    if (width == 0) continue;
    if (lines > 0 && x > frame.left && x + width > end) x = frame.left, y += kLegendLine;
    draw_entry(svg, {x, y}, series);
    x += width;
  }
}

void draw_lines(Svg& svg, const Frame& frame, const Series& series, const std::string& color) {
  std::vector<Point> piece;
  const auto draw = [&] {
    if (piece.size() > 1 && series.style == Series::Style::kArea) {
      std::vector<Point> outline = piece;
      outline.push_back({piece.back().x, frame.at_y(series.base)});
      outline.push_back({piece.front().x, frame.at_y(series.base)});
      svg.area(outline, color, 0.8);
      svg.path(piece, "#ffffff", 1.2, "");
    } else if (piece.size() > 1) {
      svg.path(piece, color, 2, kDashes[series.dash % 4]);
    }
    piece.clear();
  };
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (std::isnan(series.y[i])) {
      draw();
    } else {
      piece.push_back(frame.at(series.x[i], series.y[i]));
    }
  }
  draw();
}

void draw_points(Svg& svg, const Frame& frame, const Series& series, const std::string& color) {
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (std::isnan(series.y[i])) continue;
    const Point at = frame.at(series.x[i], series.y[i]);
    const bool bubble = !series.area.empty();
    const double radius =
        bubble ? std::max(kSmallPoint, kLargestBubble * std::sqrt(series.area[i])) : kSmallPoint;
    const std::string label = series.labels.empty() ? "" : series.labels[i];
    const std::string where = label.empty() ? series.name : label;
    svg.circle(at, radius, color, bubble ? 0.55 : 1, fmt::format("{}: {:.4g}", where, series.y[i]));
    if (!label.empty()) svg.text({at.x + radius + 2, at.y + 4}, label, {.size = 11});
  }
}

void draw_bars(Svg& svg, const Frame& frame, const Series& series, size_t place, size_t places,
               const std::string& color) {
  const double width = kBarsShare / static_cast<double>(places);
  for (size_t i = 0; i < series.x.size(); ++i) {
    if (std::isnan(series.y[i])) continue;
    const double left = series.x[i] - kBarsShare / 2 + width * static_cast<double>(place);
    const double top = frame.at_y(std::max(series.y[i], series.base)),
                 foot = frame.at_y(std::min(series.y[i], series.base));
    svg.rect({frame.at_x(left), top}, frame.at_x(left + width) - frame.at_x(left), foot - top, color,
             fmt::format("{}: {:.4g}", series.name, series.y[i]));
  }
}

void draw_errors(Svg& svg, const Frame& frame, const Series& series, const std::string& color) {
  for (size_t i = 0; i < series.error.size(); ++i) {
    if (std::isnan(series.y[i]) || !(series.error[i] > 0)) continue;
    const double x = frame.at_x(series.x[i]);
    const double low = frame.at_y(series.y[i] - series.error[i]),
                 high = frame.at_y(series.y[i] + series.error[i]);
    svg.line({x, low}, {x, high}, color, 1.3);
    for (const double y : {low, high}) svg.line({x - 3, y}, {x + 3, y}, color, 1.3);
  }
}

}  // namespace

std::string to_svg(const Chart& given) {
  const Chart chart = with_limits(given);
  Frame frame{chart};
  if (chart.x.turned) frame.bottom += 46;
  const int lines = legend_lines(chart, frame.left, frame.right);
  frame.top += lines * kLegendLine;
  Svg svg(chart.width, chart.height, chart.title);
  draw_axes(svg, frame);
  const auto is_bars = [](const Series& series) { return series.style == Series::Style::kBars; };
  const auto places = static_cast<size_t>(std::count_if(chart.series.begin(), chart.series.end(), is_bars));
  size_t place = 0;
  for (const Series& series : chart.series) {
    const std::string color = hex(series_color(series.color));
    if (is_bars(series)) draw_bars(svg, frame, series, place++, places, color);
    if (series.style == Series::Style::kLine || series.style == Series::Style::kArea)
      draw_lines(svg, frame, series, color);
    if (series.style == Series::Style::kPoints || series.marked) draw_points(svg, frame, series, color);
    draw_errors(svg, frame, series, color);
  }
  draw_legend(svg, frame, lines);
  return svg.str();
}

}  // namespace fathom
