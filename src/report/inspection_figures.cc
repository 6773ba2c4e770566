#include "report/inspection_figures.h"

#include <algorithm>
#include <map>

#include "base/format.h"

namespace fathom {
namespace {

const char* value_name(const InspectionStats& stats) {
  return stats.has_scores() ? "score" : "share of units run";
}

// (rows, layers) of attention or the FFNs.
template <class Value>
HeatPanel panel_of(const char* title, size_t rows, int64_t layers, Unit unit, Value value) {
  HeatPanel panel{title, static_cast<size_t>(layers), {}};
  for (size_t r = 0; r < rows; ++r) {
    for (int64_t layer = 0; layer < layers; ++layer)
      panel.values.push_back(value(r, 2 * layer + (unit == Unit::kFfn ? 1 : 0)));
  }
  return panel;
}

std::vector<float> all_values(const InspectionStats& stats, int64_t unit) {
  std::vector<float> values;
  for (size_t r = 0; r < stats.rows(); ++r) {
    const float value = stats.value(r, unit);
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

// Gaussian kernels by Silverman's rule, over a grid; the highest point is 1.
std::vector<double> density(const std::vector<float>& values, std::span<const double> grid) {
  double mean = 0, variance = 0;
  for (const float v : values) mean += v / static_cast<double>(values.size());
  for (const float v : values) variance += (v - mean) * (v - mean) / static_cast<double>(values.size());
  const double step = grid[1] - grid[0];
  const double width =
      std::max(1.5 * step, 1.06 * std::sqrt(variance) * std::pow(static_cast<double>(values.size()), -0.2));
  std::vector<double> out;
  for (const double x : grid) {
    double sum = 0;
    for (const float v : values) sum += std::exp(-0.5 * (x - v) * (x - v) / (width * width));
    out.push_back(sum);
  }
  const double most = *std::max_element(out.begin(), out.end());
  for (double& y : out) y = most > 0 ? y / most : 0;
  return out;
}

void set_range(HeatMap& map, ValueRange range) {
  map.low = range.low;
  map.high = range.high;
}

}  // namespace

ValueRange value_range(const InspectionStats& stats) {
  if (!stats.has_scores()) return {};
  std::vector<float> all;
  for (int64_t unit = 0; unit < 2 * stats.layers(); ++unit) {
    const std::vector<float> values = all_values(stats, unit);
    all.insert(all.end(), values.begin(), values.end());
  }
  if (all.empty()) return {};
  std::sort(all.begin(), all.end());
  const auto at = [&](double share) {
    return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))];
  };
  if (at(0.98) > at(0.02)) return {at(0.02), at(0.98)};
  return {all.front(), all.back()};
}

HeatMap token_map(const InspectionStats& stats, const Trace& trace, Shown shown) {
  const size_t rows = std::min(stats.rows(), kTokensInPicture);
  const bool ran = shown == Shown::kRan;
  HeatMap map;
  map.title = ran ? "Which units each token ran" : "Score of each token in each unit";
  if (rows < stats.rows()) map.title += fmt::format(" (the first {} of {} tokens)", rows, stats.rows());
  map.column_label = "layer";
  map.value_label = "score";
  if (ran) map.low_name = "skipped", map.high_name = "ran";
  for (size_t r = 0; r < rows; ++r) map.rows.push_back(stats.label(r));
  for (const auto& [title, unit] : {std::pair{"attention", Unit::kAttention}, std::pair{"FFN", Unit::kFfn}}) {
    map.panels.push_back(panel_of(title, rows, stats.layers(), unit, [&](size_t r, int64_t u) {
      return ran ? (trace.ran(r, u) ? 1.0f : 0.0f) : stats.value(r, u);
    }));
  }
  if (!ran) set_range(map, value_range(stats));
  return map;
}

HeatMap class_map(const InspectionStats& stats) {
  HeatMap map;
  map.title = fmt::format("Mean {} by class of token and layer", value_name(stats));
  map.column_label = "layer";
  map.value_label = value_name(stats);
  std::vector<TokenClass> present;
  for (size_t c = 0; c < kTokenClasses; ++c) {
    const auto token_class = static_cast<TokenClass>(c);
    int64_t count = 0;
    for (size_t r = 0; r < stats.rows(); ++r) count += stats.token_class(r) == token_class;
    if (count == 0) continue;
    present.push_back(token_class);
    map.rows.push_back(fmt::format("{} ({})", name_of(token_class), count));
  }
  for (const auto& [title, unit] : {std::pair{"attention", Unit::kAttention}, std::pair{"FFN", Unit::kFfn}}) {
    map.panels.push_back(panel_of(title, present.size(), stats.layers(), unit, [&](size_t r, int64_t u) {
      return static_cast<float>(stats.class_value(present[r], u));
    }));
  }
  map.low = INFINITY, map.high = -INFINITY;
  for (const HeatPanel& panel : map.panels) {
    for (const float value : panel.values) {
      if (std::isnan(value)) continue;
      map.low = std::min<double>(map.low, value);
      map.high = std::max<double>(map.high, value);
    }
  }
  if (!(map.high > map.low)) set_range(map, value_range(stats));
  return map;
}

Chart skip_chart(const InspectionStats& stats) {
  Chart chart{.title = "Share of tokens that skip, by layer"};
  chart.x.label = "layer";
  chart.y = {.label = "skip ratio", .low = 0};
  Series attention{.name = "attention", .style = Series::Style::kBars}, ffn = attention;
  ffn.name = "FFN";
  ffn.color = 1;
  for (int64_t layer = 0; layer < stats.layers(); ++layer) {
    for (Series* series : {&attention, &ffn}) series->x.push_back(static_cast<double>(layer));
    attention.y.push_back(stats.skip_ratio(2 * layer));
    ffn.y.push_back(stats.skip_ratio(2 * layer + 1));
    if (stats.layers() <= 16 || layer % 5 == 0) chart.x.ticks.emplace_back(layer, std::to_string(layer));
  }
  chart.series = {attention, ffn};
  return chart;
}

Chart token_chart(const InspectionStats& stats) {
  const std::vector<TokenStats> tokens = stats.tokens();
  const size_t named = std::min(kTokensNamed, tokens.size() / 2 + tokens.size() % 2);
  Chart chart{.title = fmt::format("Tokens with the highest and the lowest mean {}", value_name(stats))};
  chart.y.label = fmt::format("mean {}", value_name(stats));
  chart.x.turned = true;
  Series top{.name = "highest", .style = Series::Style::kPoints}, bottom = top;
  bottom.name = "lowest";
  bottom.color = 1;
  double x = 0;
  const auto add = [&](Series& series, const TokenStats& token) {
    series.x.push_back(x);
    series.y.push_back(token.value);
    series.error.push_back(token.error);
    chart.x.ticks.emplace_back(x++, token.label);
  };
  for (size_t i = 0; i < named; ++i) add(top, tokens[i]);
  for (size_t i = std::max(named, tokens.size() - named); i < tokens.size(); ++i) add(bottom, tokens[i]);
  chart.series = {top, bottom};
  return chart;
}

namespace {

// Side by side where several of a class skip as much, so that equals do not hide each other.
double beside(size_t equal) {
  const double step = static_cast<double>((equal % 5 + 1) / 2) * 0.17;
  return equal % 2 ? step : -step;
}

// Names beside bubbles, as long as none stands on another.
class Names {
 public:
  explicit Names(double height) : height_(height) {}
  bool fits(double x, double y, const std::string& name) {
    const double right = x + 0.12 + 0.075 * static_cast<double>(name.size());
    for (const Place& other : places_) {
      if (x < other.right && right > other.left && std::abs(y - other.y) < 0.035 * height_) return false;
    }
    places_.push_back({x, right, y});
    return true;
  }

 private:
  struct Place {
    double left, right, y;
  };
  double height_;
  std::vector<Place> places_;
};

}  // namespace

Chart bubble_chart(const InspectionStats& stats) {
  std::vector<TokenStats> tokens = stats.tokens();
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const TokenStats& a, const TokenStats& b) { return a.skipped > b.skipped; });
  int64_t most = 1;
  for (const TokenStats& token : tokens) most = std::max(most, token.count);
  Chart chart{.title = "Tokens by the layers they skip (area: how often the token stands in the text)"};
  chart.width = 980;
  chart.height = 560;
  chart.y.label = "layers skipped, mean";
  chart.x = {.low = -0.6, .high = static_cast<double>(kTokenClasses) - 0.2};
  for (size_t c = 0; c < kTokenClasses; ++c) {
    chart.x.ticks.emplace_back(c, name_of(static_cast<TokenClass>(c)));
    chart.series.push_back({.style = Series::Style::kPoints, .color = c});
  }
  std::map<std::pair<size_t, int64_t>, size_t> equals;
  Names names(std::max(0.5, tokens.front().skipped - tokens.back().skipped));
  // From both ends inward: those that skip most and least get their names first.
  for (size_t i = 0; i < tokens.size(); ++i) {
    const TokenStats& token = tokens[i % 2 ? tokens.size() - 1 - i / 2 : i / 2];
    const auto c = static_cast<size_t>(token.token_class);
    Series& series = chart.series[c];
    const double x = static_cast<double>(c) + beside(equals[{c, std::llround(20 * token.skipped)}]++);
    series.x.push_back(x);
    series.y.push_back(token.skipped);
    series.area.push_back(static_cast<double>(token.count) / static_cast<double>(most));
    series.labels.push_back(names.fits(x, token.skipped, token.label) ? token.label : "");
  }
  return chart;
}

Chart density_chart(const InspectionStats& stats, Unit unit, const std::vector<float>& thresholds) {
  const bool attention = unit == Unit::kAttention;
  Chart chart{.title = fmt::format("Density of the scores of each {}", attention ? "attention unit" : "FFN")};
  chart.x.label = thresholds.empty() ? "score" : "score; the line across a layer: its calibrated threshold";
  chart.y.label = "layer";
  chart.height = 120 + std::max(240.0, 26.0 * static_cast<double>(stats.layers()));
  const auto [low, high] = value_range(stats);
  const double air = high > low ? 0.2 * (high - low) : 0.05;
  std::vector<double> grid;
  for (int i = 0; i <= 160; ++i) grid.push_back(low - air + (high - low + 2 * air) * i / 160);
  chart.x.low = grid.front();
  chart.x.high = grid.back();
  Series lines{.color = 1};
  // From the top down, so that each stands before the one above it.
  for (int64_t layer = stats.layers() - 1; layer >= 0; --layer) {
    const int64_t index = 2 * layer + (attention ? 0 : 1);
    const auto foot = static_cast<double>(layer);
    if (layer % 5 == 0 || stats.layers() <= 16) chart.y.ticks.emplace_back(foot, std::to_string(layer));
    const std::vector<float> values = all_values(stats, index);
    if (values.empty() || !stats.has_scores()) continue;
    Series ridge{.style = Series::Style::kArea, .x = grid, .base = foot};
    for (const double y : density(values, grid)) ridge.y.push_back(foot + 1.3 * y);
    chart.series.push_back(std::move(ridge));
    const float threshold = thresholds.empty() ? NAN : thresholds[static_cast<size_t>(index)];
    if (!(threshold >= chart.x.low && threshold <= chart.x.high)) continue;
    for (const double y : {foot, foot + 0.95, double{NAN}}) {
      lines.x.push_back(threshold);
      lines.y.push_back(y);
    }
  }
  if (!lines.x.empty()) chart.series.push_back(std::move(lines));
  chart.y.low = -0.2;
  chart.y.high = static_cast<double>(stats.layers()) + 0.5;
  return chart;
}

}  // namespace fathom
