#include "report/chart.h"

#include <algorithm>

#include "base/format.h"

namespace fathom {
namespace {

struct Interval {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

bool stands_on_base(const Series& series) {
  return series.style == Series::Style::kBars || series.style == Series::Style::kArea;
}

// What the data need: error bars and bases inside, a little air where nothing stands on the edge.
void set_limits(Axis& axis, Interval range, bool air_below) {
  if (!(range.low <= range.high)) range = {0, 1};
  const double span =
      range.high > range.low ? range.high - range.low : std::max(1e-6, std::abs(range.high) * 0.1);
  if (std::isnan(axis.low)) axis.low = air_below ? range.low - 0.04 * span : range.low;
  if (std::isnan(axis.high)) axis.high = range.high + 0.06 * span;
  if (!(axis.high > axis.low)) axis.high = axis.low + 1;
  if (!axis.ticks.empty()) return;
  for (const double tick : round_ticks(axis.low, axis.high, 6))
    axis.ticks.emplace_back(tick, tick_text(tick));
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(1, count);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) step = factor * power;
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i)
    ticks.push_back(i * step);
  return ticks;
}

std::string tick_text(double value) {
  return fmt::format("{:.6g}", std::abs(value) < 1e-12 ? 0.0 : value);
}

Chart with_limits(Chart chart) {
  Interval x, y;
  bool bars = false, stands = false;
  for (const Series& series : chart.series) {
    bars = bars || series.style == Series::Style::kBars;
    stands = stands || stands_on_base(series);
    for (size_t i = 0; i < series.x.size(); ++i) {
      const double error = series.error.empty() || std::isnan(series.error[i]) ? 0 : series.error[i];
      x.add(series.x[i]);
      y.add(series.y[i] - error);
      y.add(series.y[i] + error);
      if (stands_on_base(series)) y.add(series.base);
    }
  }
  if (bars) {
    x.add(x.low - 0.6);
    x.add(x.high + 0.6);
    if (std::isnan(chart.x.high)) chart.x.high = x.high;
  }
  set_limits(chart.x, x, !bars && !stands);
  set_limits(chart.y, y, !stands);
  return chart;
}

}  // namespace fathom
