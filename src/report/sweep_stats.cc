#include "report/sweep_stats.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace fathom {
namespace {

bool is_share(const Metric* metric) {
  return metric && counts_right_items(metric->name);
}

bool same_place(const SweepPoint& a, const SweepPoint& b) {
  return a.kind == b.kind && a.label == b.label && a.budget == b.budget && a.dropped_units == b.dropped_units;
}

// Tasks are apart: so are their errors.
SweepScore mean_score(const std::vector<const SweepScore*>& scores) {
  SweepScore mean = *scores.front();
  for (size_t i = 1; i < scores.size(); ++i) {
    SweepScore next = *scores[i];
    next.metrics = mean.metrics;  // of other tasks, other metrics: they are set below
    mean = between(mean, next, 1.0 / static_cast<double>(i + 1));
  }
  const auto count = static_cast<double>(scores.size());
  Metric acc{"mean acc", 0, 0};
  for (const SweepScore* score : scores) {
    acc.value += main_metric(*score)->value / count;
    acc.error += main_metric(*score)->error * main_metric(*score)->error;
  }
  acc.error = std::sqrt(acc.error) / count;
  mean.metrics = {acc};
  return mean;
}

// The mean of the tasks' differences; their paired errors are apart, as tasks are.
std::vector<Metric> mean_difference(const std::vector<const SweepPoint*>& points,
                                    std::vector<Metric> SweepPoint::*which) {
  Metric mean{"mean acc", 0, 0};
  const auto count = static_cast<double>(points.size());
  for (const SweepPoint* point : points) {
    if ((point->*which).empty()) return {};
    const Metric& own = (point->*which).front();
    mean.value += own.value / count;
    mean.error += own.error * own.error;
  }
  mean.error = std::sqrt(mean.error) / count;
  return {mean};
}

// Of all points that stand at the same place; nothing where one of them has none.
std::optional<SweepScore> mean_baseline(const std::vector<const SweepPoint*>& points,
                                        std::optional<SweepScore> SweepPoint::*which) {
  std::vector<const SweepScore*> scores;
  for (const SweepPoint* point : points) {
    if (!(point->*which)) return std::nullopt;
    scores.push_back(&*(point->*which));
  }
  return mean_score(scores);
}

std::string ratio(double value) {
  return std::isnan(value) ? "–" : fmt::format("{:.3f}", value);
}

std::string baseline_text(const std::optional<SweepScore>& score) {
  return score ? value_text(main_metric(*score)) : "–";
}

}  // namespace

const Metric* main_metric(const SweepScore& score) {
  return score.metrics.empty() ? nullptr : &score.metrics.front();
}

bool is_perplexity(const std::string& metric) {
  return metric.ends_with("perplexity");
}

std::string task_name(const std::string& task) {
  const size_t slash = task.rfind('/');
  return slash == std::string::npos ? task : task.substr(slash + 1);
}

std::vector<std::string> tasks_of(const std::vector<SweepPoint>& points) {
  std::vector<std::string> tasks;
  for (const SweepPoint& point : points) {
    if (std::find(tasks.begin(), tasks.end(), point.task) == tasks.end()) tasks.push_back(point.task);
  }
  return tasks;
}

std::vector<SweepPoint> of_task(const std::vector<SweepPoint>& points, const std::string& task) {
  std::vector<SweepPoint> out;
  std::copy_if(points.begin(), points.end(), std::back_inserter(out),
               [&](const SweepPoint& point) { return point.task == task; });
  return out;
}

std::vector<SweepPoint> mean_points(const std::vector<SweepPoint>& points) {
  std::vector<std::vector<SweepPoint>> tasks;
  for (const std::string& task : tasks_of(points)) {
    std::vector<SweepPoint> own = of_task(points, task);
    if (is_share(main_metric(own.front().score))) tasks.push_back(std::move(own));
  }
  if (tasks.size() < 2) return {};
  std::vector<SweepPoint> means;
  for (const SweepPoint& point : tasks.front()) {
    std::vector<const SweepPoint*> all;
    for (const std::vector<SweepPoint>& own : tasks) {
      const auto found = std::find_if(own.begin(), own.end(),
                                      [&](const SweepPoint& other) { return same_place(point, other); });
      if (found != own.end()) all.push_back(&*found);
    }
    if (all.size() < tasks.size()) continue;
    std::vector<const SweepScore*> scores;
    scores.reserve(all.size());
    for (const SweepPoint* one : all) scores.push_back(&one->score);
    SweepPoint& mean = means.emplace_back(point);
    mean.task = fmt::format("mean of {} tasks", tasks.size());
    mean.score = mean_score(scores);
    mean.random = mean_baseline(all, &SweepPoint::random);
    mean.shallow = mean_baseline(all, &SweepPoint::shallow);
    for (const auto which : {&SweepPoint::to_dense, &SweepPoint::to_random, &SweepPoint::to_shallow})
      mean.*which = mean_difference(all, which);
    mean.random_seeds.clear();
  }
  return means;
}

double speed_up(const SweepScore& score) {
  return score.decode_tokens_per_s / score.dense_decode_tokens_per_s;
}

std::string budget_text(const SweepPoint& point) {
  if (point.kind != PointKind::kMethod) return "–";
  return point.budget ? fmt::format("{:g}", *point.budget) : "own rule";
}

std::string value_text(const Metric* metric) {
  if (!metric) return "–";
  const bool large = std::abs(metric->value) >= 10;
  std::string text = large ? fmt::format("{:.4g}", metric->value) : fmt::format("{:.3f}", metric->value);
  if (!std::isnan(metric->error))
    text += large ? fmt::format(" ± {:.2g}", metric->error) : fmt::format(" ± {:.3f}", metric->error);
  return text;
}

std::string difference_text(const std::vector<Metric>& differences) {
  if (differences.empty()) return "–";
  const Metric& own = differences.front();
  const std::string verdict = verdict_of(own);
  return (own.value < 0 ? "" : "+") + value_text(&own) + (verdict.empty() ? "" : " " + verdict);
}

Table point_table(const std::vector<SweepPoint>& points) {
  const Metric* metric = points.empty() ? nullptr : main_metric(points.front().score);
  Table table;
  table.columns = {"method",
                   "budget",
                   metric ? metric->name : "not judged",
                   "against dense",
                   "random",
                   "against random",
                   "shallower",
                   "against shallower",
                   "skip ratio",
                   "block FLOPs",
                   "net FLOPs",
                   "net bytes",
                   "decode tok/s",
                   "speed-up"};
  for (const SweepPoint& point : points) {
    if (point.kind == PointKind::kShallow) continue;
    const SweepScore& score = point.score;
    table.rows.push_back(
        {point.label, budget_text(point), value_text(main_metric(score)), difference_text(point.to_dense),
         baseline_text(point.random), difference_text(point.to_random), baseline_text(point.shallow),
         difference_text(point.to_shallow), ratio(score.savings.skip_ratio), ratio(score.savings.block_flops),
         ratio(score.savings.net_flops), ratio(score.savings.net_bytes),
         fmt::format("{:.1f}", score.decode_tokens_per_s), fmt::format("{:.2f}", speed_up(score))});
  }
  return table;
}

}  // namespace fathom
