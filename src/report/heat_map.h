// A table of numbers as colours: rows × columns, in panels side by side that share their rows.
#pragma once

#include <string>
#include <vector>

#include "report/gnuplot.h"

namespace fathom {

struct HeatPanel {
  std::string title;
  size_t columns = 0;         // numbered from 0
  std::vector<float> values;  // (rows, columns); NaN: nothing there
};

struct HeatMap {
  std::string title, column_label, value_label;
  std::vector<std::string> rows;
  std::vector<HeatPanel> panels;
  double low = 0, high = 1;  // the ends of the colours
  std::string low_name = {},
              high_name = {};  // where only these two occur: what they mean, instead of a scale
};

std::string to_svg(const HeatMap& map);
Plot to_plot(const HeatMap& map);

}  // namespace fathom
