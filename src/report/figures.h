// A folder of figures: each as SVG, and as PNG where gnuplot is there.
#pragma once

#include <string>
#include <vector>

#include "report/chart.h"
#include "report/heat_map.h"

namespace fathom {

class Figures {
 public:
  // Makes the folder. One that cannot be made or written to is a UserError: before the work, not after it.
  explicit Figures(const std::string& folder);

  // Writes NAME.svg and NAME.png. Returns the SVG, for a page. Without gnuplot, or where gnuplot fails, one
  // warning says so and everything but the PNG is still made.
  template <class Figure>
  std::string add(const std::string& name, const Figure& figure) {
    return add(name, to_svg(figure), to_plot(figure));
  }
  void write(const std::string& name, const std::string& text);
  const std::vector<std::string>& files() const { return files_; }

 private:
  std::string add(const std::string& name, std::string svg, const Plot& plot);

  std::string folder_;
  bool png_ = true;
  std::vector<std::string> files_;
};

}  // namespace fathom
