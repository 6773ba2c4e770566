#include "report/sweep_figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/format.h"

namespace fathom {
namespace {

constexpr size_t kGrey = 6;  // of series_color()

double saved_percent(double ratio) {
  return 100 * (1 - ratio);
}

// What lies along the x axis.
struct Along {
  const char* title;
  const char* label;
  double (*of)(const SweepScore&);
};

constexpr Along kWork{": quality against savings",
                      "multiply-adds saved, net of routers, % of the dense model's",
                      [](const SweepScore& score) { return saved_percent(score.savings.net_flops); }};
constexpr Along kTime{": quality against the time to decode",
                      "time of a decoded token, % of the dense model's",
                      [](const SweepScore& score) { return 100 / speed_up(score); }};

// The metric as it is drawn; nothing where the place along the axis was not measured.
void add(Series& series, const SweepScore& score, const Along& along) {
  const double x = along.of(score);
  if (!std::isfinite(x)) return;
  const Metric* metric = main_metric(score);
  const bool log = is_perplexity(metric->name);
  series.x.push_back(x);
  series.y.push_back(log ? std::log(metric->value) : metric->value);
  series.error.push_back(log ? metric->error / metric->value : metric->error);
}

void sort_by_x(Series& series) {
  std::vector<size_t> order(series.x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return series.x[a] < series.x[b]; });
  const auto sorted = [&](const auto& values) {
    auto out = values;
    for (size_t i = 0; i < out.size(); ++i) out[i] = values[order[i]];
    return out;
  };
  series.x = sorted(series.x);
  series.y = sorted(series.y);
  series.error = sorted(series.error);
  series.labels = sorted(series.labels);
}

std::vector<std::string> method_labels(const std::vector<SweepPoint>& points) {
  std::vector<std::string> labels;
  for (const SweepPoint& point : points) {
    const bool known = std::find(labels.begin(), labels.end(), point.label) != labels.end();
    if (point.kind == PointKind::kMethod && !known) labels.push_back(point.label);
  }
  return labels;
}

// A line through the points that `which` picks a score of; null: not of this point.
template <class Fn>
void add_line(Chart& chart, const std::vector<SweepPoint>& points, const Along& along, Series series,
              Fn&& which) {
  series.marked = true;
  for (const SweepPoint& point : points) {
    const SweepScore* score = which(point);
    if (score) add(series, *score, along);
  }
  if (series.x.empty()) return;
  sort_by_x(series);
  chart.series.push_back(std::move(series));
}

// Dense at the height of the first one, all along, for the eye.
void add_dense_level(Chart& chart, const SweepPoint& dense, const Along& along) {
  Series level{.name = dense.label, .color = kGrey, .dash = 2};
  add(level, dense.score, along);
  if (level.x.empty()) return;
  double farthest = level.x[0];
  for (const Series& series : chart.series) {
    for (const double x : series.x)
      if (std::abs(x - level.x[0]) > std::abs(farthest - level.x[0])) farthest = x;
  }
  level.x.push_back(farthest);
  level.y.push_back(level.y[0]);
  level.error.push_back(NAN);
  chart.series.push_back(std::move(level));
}

// As its logarithm, item by item.
Metric log_metric(Metric metric) {
  for (double& item : metric.items) item /= metric.value;
  return {metric.name, std::log(metric.value), metric.error / metric.value, std::move(metric.items)};
}

// The point less its baseline, as it is drawn; null: it has none.
std::optional<Metric> drawn_difference(const SweepPoint& point, const std::optional<SweepScore>& baseline,
                                       const std::vector<Metric>& difference) {
  if (!baseline || difference.empty()) return std::nullopt;
  if (!is_perplexity(difference.front().name)) return difference.front();
  return paired_difference(log_metric(*main_metric(point.score)), log_metric(*main_metric(*baseline)));
}

std::string metric_label(const std::string& name) {
  if (is_perplexity(name)) return fmt::format("ln {} (lower is better)", name);
  return name == "bits_per_byte" ? name + " (lower is better)" : name;
}

Chart quality_along(const std::vector<SweepPoint>& points, const Along& along) {
  const Metric* metric = points.empty() ? nullptr : main_metric(points.front().score);
  Chart chart{.title = points.empty() ? "" : task_name(points.front().task)};
  if (!metric) return chart;
  chart.title += along.title;
  chart.x.label = along.label;
  chart.y.label = metric_label(metric->name);
  size_t color = 0;
  for (const std::string& label : method_labels(points)) {
    add_line(chart, points, along, {.name = label, .color = color++}, [&](const SweepPoint& point) {
      return point.kind == PointKind::kMethod && point.label == label ? &point.score : nullptr;
    });
  }
  add_line(chart, points, along, {.name = "random", .color = color++, .dash = 1},
           [](const SweepPoint& point) { return point.random ? &*point.random : nullptr; });
  const auto is_shallower = [&](const SweepPoint& point) {
    const bool dense = point.kind == PointKind::kDense;
    return (dense || point.kind == PointKind::kShallow) ? &point.score : nullptr;
  };
  const auto shallower = std::count_if(points.begin(), points.end(),
                                       [&](const SweepPoint& point) { return is_shallower(point); });
  if (shallower > 1)
    add_line(chart, points, along, {.name = "shallower", .color = color++, .dash = 3}, is_shallower);
  if (points.front().kind == PointKind::kDense) add_dense_level(chart, points.front(), along);
  return chart;
}

}  // namespace

Chart quality_chart(const std::vector<SweepPoint>& points) {
  return quality_along(points, kWork);
}

Chart quality_by_time_chart(const std::vector<SweepPoint>& points) {
  return quality_along(points, kTime);
}

Chart difference_chart(const std::vector<SweepPoint>& points) {
  const Metric* metric = points.empty() ? nullptr : main_metric(points.front().score);
  Chart chart{.title = points.empty() ? "" : task_name(points.front().task)};
  if (!metric) return chart;
  chart.title += ": difference to the baselines, on the same items";
  chart.x.label = "multiply-adds saved, net of routers, % of the dense model's";
  chart.y.label = metric_label(metric->name);
  double most = 0;
  const auto add_method = [&](const std::string& label, const char* than, size_t color, auto&& pick) {
    Series series{.name = label + " against " + than, .marked = true, .color = color};
    for (const SweepPoint& point : points) {
      if (point.kind != PointKind::kMethod || point.label != label) continue;
      const std::optional<Metric> difference = pick(point);
      if (!difference) continue;
      series.x.push_back(saved_percent(point.score.savings.net_flops));
      series.y.push_back(difference->value);
      series.error.push_back(difference->error);
      series.labels.push_back(verdict_of(*difference));
      most = std::max(most, series.x.back());
    }
    if (series.x.empty()) return;
    sort_by_x(series);
    chart.series.push_back(std::move(series));
  };
  size_t color = 0;
  for (const std::string& label : method_labels(points)) {
    add_method(label, "random", color++, [](const SweepPoint& point) {
      return drawn_difference(point, point.random, point.to_random);
    });
    add_method(label, "shallower", color++, [](const SweepPoint& point) {
      return drawn_difference(point, point.shallow, point.to_shallow);
    });
  }
  if (!chart.series.empty())
    chart.series.push_back({.name = "level", .x = {0, most}, .y = {0, 0}, .color = kGrey, .dash = 2});
  return chart;
}

Chart speed_chart(const std::vector<SweepPoint>& points) {
  Chart chart{.title = "Decoding one token after another: what the bytes not read give"};
  chart.x.label = "bytes saved, % of the dense model's";
  chart.y.label = "speed-up, measured";
  Series ideal{.name = "if time were bytes", .color = kGrey, .dash = 2};
  double most = 0;
  const auto add_method = [&](const std::string& name, size_t color, PointKind kind) {
    Series series{.name = name, .marked = true, .color = color};
    for (const SweepPoint& point : points) {
      if (point.kind != kind || (kind == PointKind::kMethod && point.label != name)) continue;
      series.x.push_back(saved_percent(point.score.savings.net_bytes));
      series.y.push_back(speed_up(point.score));
      series.error.push_back(NAN);
      most = std::max(most, series.x.back());
    }
    if (series.x.empty()) return;
    sort_by_x(series);
    series.error.clear();
    chart.series.push_back(std::move(series));
  };
  size_t color = 0;
  for (const std::string& label : method_labels(points)) add_method(label, color++, PointKind::kMethod);
  add_method("shallower", color + 1, PointKind::kShallow);  // as in the other charts
  constexpr int kPieces = 20;
  for (int i = 0; i <= kPieces; ++i) {
    ideal.x.push_back(most * i / kPieces);
    ideal.y.push_back(1 / (1 - ideal.x.back() / 100));
  }
  if (!chart.series.empty() && most > 0) chart.series.push_back(std::move(ideal));
  return chart;
}

}  // namespace fathom
