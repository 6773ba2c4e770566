// Curves, bars, areas and bubbles over two axes: described once, drawn as SVG by us and as PNG by gnuplot.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "report/gnuplot.h"

namespace fathom {

struct Series {
  enum class Style : uint8_t { kLine, kPoints, kBars, kArea };

  std::string name = {};  // "": not in the legend
  Style style = Style::kLine;
  std::vector<double> x = {}, y = {};    // a NaN y breaks a line
  std::vector<double> error = {};        // half the length of each error bar; empty: none
  std::vector<double> area = {};         // of points, the largest is 1; empty: all small
  std::vector<std::string> labels = {};  // beside each point; empty or "": none
  bool marked = false;                   // a line's points are dots
  double base = 0;                       // what bars and areas stand on
  size_t color = 0, dash = 0;            // index of series_color(), of the dashes of a line
};

struct Axis {
  std::string label = {};
  double low = NAN, high = NAN;                            // NaN: from the series
  std::vector<std::pair<double, std::string>> ticks = {};  // empty: round numbers
  bool turned = false;                                     // tick labels stand upright
};

struct Chart {
  std::string title;
  Axis x = {}, y = {};
  std::vector<Series> series = {};
  double width = 760, height = 420;
};

std::string to_svg(const Chart& chart);
Plot to_plot(const Chart& chart);

// Of the distance between two places that bars fill.
inline constexpr double kBarsShare = 0.8;

// Round numbers that cover [low, high], about `count` of them.
std::vector<double> round_ticks(double low, double high, int count);
std::string tick_text(double value);

// The axes with their limits and ticks set.
Chart with_limits(Chart chart);

}  // namespace fathom
