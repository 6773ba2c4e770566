#include <cmath>
#include <nlohmann/json.hpp>

#include "report/sweep_report.h"
#include "report/sweep_stats.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

Json metrics_json(const SweepScore& score) {
  Json out = Json::object();
  for (const Metric& metric : score.metrics)
    out[metric.name] = {{"value", number_json(metric.value)}, {"stderr", number_json(metric.error)}};
  return out;
}

void add_score(Json& out, const SweepScore& score) {
  out["metrics"] = metrics_json(score);
  out["skip_ratio"] = number_json(score.savings.skip_ratio);
  out["block_flops"] = number_json(score.savings.block_flops);
  out["net_flops"] = number_json(score.savings.net_flops);
  out["net_bytes"] = number_json(score.savings.net_bytes);
  out["seconds"] = number_json(score.seconds);
  out["tokens_per_s"] = number_json(score.tokens_per_s);
  out["decode_tokens_per_s"] = number_json(score.decode_tokens_per_s);
  out["dense_decode_tokens_per_s"] = number_json(score.dense_decode_tokens_per_s);
  out["speed_up"] = number_json(speed_up(score));
}

// By what it is compared with, then by metric.
Json differences_json(const SweepPoint& point) {
  Json out = Json::object();
  const auto add = [&](const char* with, const std::vector<Metric>& differences) {
    for (const Metric& one : differences) {
      const std::string verdict = verdict_of(one);
      out[with][one.name] = {{"value", number_json(one.value)},
                             {"stderr", number_json(one.error)},
                             {"verdict", verdict.empty() ? Json() : Json(verdict)}};
    }
  };
  add("dense", point.to_dense);
  add("random", point.to_random);
  add("shallow", point.to_shallow);
  return out;
}

const char* name_of(PointKind kind) {
  return kind == PointKind::kDense ? "dense" : kind == PointKind::kMethod ? "method" : "shallow";
}

Json point_json(const SweepPoint& point) {
  Json out{{"kind", name_of(point.kind)}, {"label", point.label}, {"method", point.method}};
  out["task"] = point.task;
  out["budget"] = point.budget ? Json(*point.budget) : Json();
  if (point.kind == PointKind::kShallow) out["dropped_units"] = point.dropped_units;
  out["n"] = point.items;
  add_score(out, point.score);
  if (point.random) {
    add_score(out["random"], *point.random);
    for (const SweepScore& draw : point.random_seeds)
      out["random"]["seeds"].push_back(
          {{"metrics", metrics_json(draw)}, {"skip_ratio", number_json(draw.savings.skip_ratio)}});
  }
  if (point.shallow) add_score(out["shallow"], *point.shallow);
  out["differences"] = differences_json(point);
  return out;
}

}  // namespace

std::string sweep_json(const SweepInfo& info, const std::vector<SweepPoint>& points) {
  Json out{{"format", "fathom-sweep"}, {"version", 1}, {"model", info.model}};
  for (const auto& [name, value] : info.settings) out["settings"][name] = value;
  out["shallower"] = info.shallower;
  out["seeds"] = info.seeds;
  out["tasks"] = Json::array();
  for (const std::string& task : tasks_of(points)) {
    const SweepPoint first = of_task(points, task).front();
    const Metric* metric = main_metric(first.score);
    out["tasks"].push_back({{"name", task},
                            {"n", first.items},
                            {"truncated", first.truncated},
                            {"metric", metric ? Json(metric->name) : Json()}});
  }
  out["points"] = Json::array();
  for (const SweepPoint& point : points) out["points"].push_back(point_json(point));
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fathom
