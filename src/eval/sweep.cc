#include "eval/sweep.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "base/log.h"
#include "eval/sweep_identity.h"
#include "skip/fingerprint.h"
#include "skip/harm_order.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr int64_t kShallowRuns = 2;  // for each point: the depths on either side

std::string budget_name(const std::optional<double>& budget) {
  return budget ? fmt::format("{:g}", *budget) : "own";
}

// ", layers 0 29 protected": another name, so that no kept run without them is taken for it.
std::string protected_name(const std::vector<int32_t>& layers) {
  std::string name;
  for (const int32_t layer : layers) name += fmt::format(" {}", layer);
  return name.empty() ? "" : ", layers" + name + " protected";
}

std::unique_ptr<MethodPolicy> make_policy(const Json& json, const ModelConfig& config) {
  std::unique_ptr<MethodPolicy> policy = MethodPolicy::from_json(json.dump(), "sweep");
  policy->check(config);
  policy->initialise(config, 0);
  return policy;
}

class Sweep {
 public:
  Sweep(const SweepPlan& plan, SweepCache& cache) : plan_(plan), cache_(cache), runner_(cache, plan.runner) {}

  std::vector<SweepPoint> run() {
    claim();
    for (const SweepTask& task : plan_.tasks) run_task(task);
    return std::move(points_);
  }

 private:
  void claim();
  void run_task(const SweepTask& task);
  SweepScore score_of(const SweepOutcome& outcome, const SweepModel& model, const SweepTask& task) const;
  SweepPoint run_point(const SweepMethod& method, const SweepBudget& budget, const SweepTask& task);
  void compare(SweepPoint& point) const;
  void add_random(const SweepMethod& method, const SweepTask& task, SweepPoint& point);
  const SweepScore& depth(int64_t dropped, const SweepTask& task);
  std::optional<SweepScore> shallow_at(const SweepPoint& point, const SweepTask& task);
  std::optional<SweepScore> among_dense(double net_flops) const;

  const SweepPlan& plan_;
  SweepCache& cache_;
  SweepRunner runner_;
  std::vector<SweepPoint> points_;
  // Of this task:
  size_t first_ = 0;                      // point
  double reference_madds_ = 0;            // of a row, by the first method's dense model
  std::map<int64_t, SweepScore> depths_;  // by units dropped
};

void Sweep::claim() {
  cache_.claim("settings", plan_.settings);
  std::map<const SweepModel*, std::string> identities;  // reading all weights takes a moment
  for (const SweepMethod& method : plan_.methods) {
    const auto [identity, is_new] = identities.try_emplace(&method.model);
    if (is_new) identity->second = identity_of(method.model.ctx, method.model.model);
    const std::string label = method.label;
    cache_.claim("model of " + label, identity->second);
    cache_.claim("adapter or method " + label, method.identity);
    for (const SweepBudget& budget : method.budgets)
      cache_.claim(fmt::format("calibration of {} at {}", label, budget_name(budget.asked)),
                   identity_of(budget.thresholds));
  }
  for (const SweepTask& task : plan_.tasks)
    cache_.claim("task " + task.task.spec.name, identity_of(task.task, task.encoded));
}

void Sweep::run_task(const SweepTask& task) {
  first_ = points_.size();
  reference_madds_ = 0;
  depths_.clear();
  std::vector<const SweepMethod*> owners;
  for (const SweepMethod& method : plan_.methods) {
    for (const SweepBudget& budget : method.budgets) {
      points_.push_back(run_point(method, budget, task));
      owners.push_back(&method);
    }
  }
  for (size_t i = 0; i < owners.size(); ++i) {
    SweepPoint& point = points_[first_ + i];
    if (owners[i]->adapter) add_random(*owners[i], task, point);
    if (plan_.shallow && owners[i]->policy) point.shallow = shallow_at(point, task);
    compare(point);
    if (plan_.on_point) plan_.on_point(point);
  }
  for (const auto& [dropped, score] : depths_) {
    if (dropped == 0) continue;
    SweepPoint point = points_[first_];  // the dense one
    point.kind = PointKind::kShallow;
    point.label = point.method = "shallow";
    point.dropped_units = dropped;
    point.score = score;
    compare(point);
    points_.push_back(std::move(point));
  }
}

SweepScore Sweep::score_of(const SweepOutcome& outcome, const SweepModel& model,
                           const SweepTask& task) const {
  std::vector<size_t> all(outcome.items.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const double rows =
      static_cast<double>(outcome.books.dense.unit_rows) / static_cast<double>(2 * model.model.config.layers);
  const double madds = static_cast<double>(outcome.books.dense.madds) / rows;
  SweepScore score;
  score.metrics = metrics_of(task.task, task.encoded, outcome.items, all);
  score.savings = outcome.books.savings();
  score.savings.net_bytes = outcome.speed.books.savings().net_bytes;
  if (&model != &plan_.methods.front().model) score.savings.net_flops *= madds / reference_madds_;
  score.seconds = outcome.seconds;
  score.tokens_per_s = rows / outcome.seconds;
  score.decode_tokens_per_s = outcome.speed.tokens_per_s;
  score.dense_decode_tokens_per_s = outcome.speed.dense_tokens_per_s;
  return score;
}

SweepPoint Sweep::run_point(const SweepMethod& method, const SweepBudget& budget, const SweepTask& task) {
  SweepPoint point;
  point.kind = method.policy ? PointKind::kMethod : PointKind::kDense;
  point.label = method.label;
  point.method = method.policy ? method.policy->name() : "dense";
  point.task = task.task.spec.name;
  point.budget = budget.asked;
  point.items = static_cast<int64_t>(task.task.items.size());
  point.truncated = task.encoded.cut;
  const SweepRun run{.name = fmt::format("{} @ {}", method.label, budget_name(budget.asked)),
                     .model = method.model,
                     .policy = method.policy,
                     .thresholds = budget.thresholds};
  const SweepOutcome outcome = runner_.run(run, task);
  if (reference_madds_ == 0)
    reference_madds_ = static_cast<double>(outcome.books.dense.madds) *
                       static_cast<double>(2 * method.model.model.config.layers) /
                       static_cast<double>(outcome.books.dense.unit_rows);
  point.score = score_of(outcome, method.model, task);
  return point;
}

void Sweep::compare(SweepPoint& point) const {
  const auto against = [&](const SweepScore& other) {
    std::vector<Metric> differences;
    for (size_t m = 0; m < point.score.metrics.size(); ++m)
      differences.push_back(paired_difference(point.score.metrics[m], other.metrics[m]));
    return differences;
  };
  const auto dense = std::find_if(points_.begin() + static_cast<ptrdiff_t>(first_), points_.end(),
                                  [](const SweepPoint& one) { return one.kind == PointKind::kDense; });
  if (dense != points_.end() && &*dense != &point) point.to_dense = against(dense->score);
  if (point.random) point.to_random = against(*point.random);
  if (point.shallow) point.to_shallow = against(*point.shallow);
}

// Decisions are drawn anew for every text and seed; how often is what the point has skipped of this task.
// Where the method protects layers, so does this, and the others skip the more.
void Sweep::add_random(const SweepMethod& method, const SweepTask& task, SweepPoint& point) {
  const double skipped = point.score.savings.skip_ratio;
  if (plan_.seeds == 0) return;
  std::vector<int32_t> protect = method.policy->options().protect;
  std::sort(protect.begin(), protect.end());
  protect.erase(std::unique(protect.begin(), protect.end()), protect.end());
  const ModelConfig& config = method.model.model.config;
  const int64_t open = config.layers - static_cast<int64_t>(protect.size());
  const double share = skipped * static_cast<double>(config.layers) / static_cast<double>(open);
  constexpr double kRounding = 1e-9;
  if (!(skipped > 0 && share <= 1 + kRounding)) {
    if (skipped > 0)
      log_info(
          fmt::format("{} at {}: no random skipping beside it, {:.3f} of all units is more than the {} "
                      "layers that are not protected have",
                      method.label, budget_name(point.budget), skipped, open));
    if (plan_.on_fewer) plan_.on_fewer(plan_.seeds * point.items);
    return;
  }
  for (int64_t draw = 0; draw < plan_.seeds; ++draw) {
    const uint64_t seed = plan_.seed + static_cast<uint64_t>(draw);
    const std::unique_ptr<MethodPolicy> policy = make_policy({{"name", "random"},
                                                              {"rows_kept", std::max(0.0, 1 - share)},
                                                              {"seed", seed},
                                                              {"keyed_by", "text"},
                                                              {"protect", protect}},
                                                             config);
    const SweepRun run{.name = fmt::format("random like {} @ {}, seed {}{}", method.label,
                                           budget_name(point.budget), seed, protected_name(protect)),
                       .model = method.model,
                       .policy = policy.get()};
    point.random_seeds.push_back(score_of(runner_.run(run, task), method.model, task));
  }
  point.random = mean_of(point.random_seeds);
}

const SweepScore& Sweep::depth(int64_t dropped, const SweepTask& task) {
  const auto found = depths_.find(dropped);
  if (found != depths_.end()) return found->second;
  if (dropped == 0) return depths_[0] = points_[first_].score;
  const SweepModel& model = plan_.methods.front().model;
  const std::vector<int32_t> units(plan_.drop_order.begin(),
                                   plan_.drop_order.begin() + static_cast<ptrdiff_t>(dropped));
  const std::unique_ptr<MethodPolicy> policy =
      make_policy({{"name", "harm_order"}, {"drop", units}}, model.model.config);
  // Which units: another order's runs are others, and never taken for these.
  const SweepRun run{.name = fmt::format("{} units dropped: {}", dropped, identity_of(units)),
                     .model = model,
                     .policy = policy.get()};
  return depths_[dropped] = score_of(runner_.run(run, task), model, task);
}

// The depths on either side of the point's net FLOPs, and what lies between them there.
std::optional<SweepScore> Sweep::shallow_at(const SweepPoint& point, const SweepTask& task) {
  const double wanted = point.score.savings.net_flops;
  if (plan_.drop_order.empty()) return among_dense(wanted);
  depth(0, task);
  const size_t known = depths_.size();
  const auto net = [&](int64_t dropped) { return depth(dropped, task).savings.net_flops; };
  const auto most = static_cast<int64_t>(plan_.drop_order.size());
  const size_t guess = units_beyond(plan_.methods.front().model.model.config, plan_.drop_order,
                                    std::min(1.0, point.score.savings.block_flops), SkippedKv::kHide,
                                    std::max<int64_t>(1, task.encoded.longest / 2));
  int64_t below = 0;
  if (net(0) > wanted) {
    below = std::clamp<int64_t>(static_cast<int64_t>(guess), 1, most);
    while (below < most && net(below) > wanted) ++below;
    while (below > 1 && net(below - 1) <= wanted) --below;
  }
  const auto runs = static_cast<int64_t>(depths_.size() - known);
  if (plan_.on_fewer) plan_.on_fewer((kShallowRuns - runs) * point.items);
  if (below == 0) return depth(0, task);
  if (net(below) > wanted) return std::nullopt;
  const double place = (net(below - 1) - wanted) / (net(below - 1) - net(below));
  return between(depth(below - 1, task), depth(below, task), place);
}

// The same between the dense models of the sweep; above the largest, that one.
std::optional<SweepScore> Sweep::among_dense(double net_flops) const {
  std::vector<const SweepScore*> dense;
  for (size_t i = first_; i < points_.size(); ++i) {
    if (points_[i].kind == PointKind::kDense) dense.push_back(&points_[i].score);
  }
  std::sort(dense.begin(), dense.end(), [](const SweepScore* a, const SweepScore* b) {
    return a->savings.net_flops > b->savings.net_flops;
  });
  for (size_t i = 0; i < dense.size(); ++i) {
    const double here = dense[i]->savings.net_flops;
    if (here > net_flops) continue;
    if (i == 0) return *dense[0];
    const double above = dense[i - 1]->savings.net_flops;
    return between(*dense[i - 1], *dense[i], (above - net_flops) / (above - here));
  }
  return std::nullopt;
}

}  // namespace

SweepScore between(const SweepScore& a, const SweepScore& b, double place) {
  const auto mix = [&](double x, double y) { return x + place * (y - x); };
  SweepScore out;
  for (size_t m = 0; m < a.metrics.size(); ++m) {
    const Metric &x = a.metrics[m], &y = b.metrics[m];
    Metric& metric = out.metrics.emplace_back(Metric{x.name, mix(x.value, y.value), mix(x.error, y.error)});
    if (x.items.size() != y.items.size()) continue;
    for (size_t i = 0; i < x.items.size(); ++i) metric.items.push_back(mix(x.items[i], y.items[i]));
  }
  out.savings = {
      mix(a.savings.skip_ratio, b.savings.skip_ratio), mix(a.savings.block_flops, b.savings.block_flops),
      mix(a.savings.net_flops, b.savings.net_flops), mix(a.savings.net_bytes, b.savings.net_bytes)};
  out.seconds = mix(a.seconds, b.seconds);
  out.tokens_per_s = mix(a.tokens_per_s, b.tokens_per_s);
  out.decode_tokens_per_s = mix(a.decode_tokens_per_s, b.decode_tokens_per_s);
  out.dense_decode_tokens_per_s = mix(a.dense_decode_tokens_per_s, b.dense_decode_tokens_per_s);
  return out;
}

SweepScore mean_of(std::span<const SweepScore> draws) {
  SweepScore mean = draws.front();
  for (size_t i = 1; i < draws.size(); ++i) mean = between(mean, draws[i], 1.0 / static_cast<double>(i + 1));
  const auto count = static_cast<double>(draws.size());
  for (size_t m = 0; m < mean.metrics.size(); ++m) {
    double of_items = 0, of_draws = 0;  // variances
    for (const SweepScore& draw : draws) {
      const Metric& metric = draw.metrics[m];
      of_items += (std::isnan(metric.error) ? 0 : metric.error * metric.error) / count;
      of_draws += (metric.value - mean.metrics[m].value) * (metric.value - mean.metrics[m].value);
    }
    if (draws.size() > 1) of_items += of_draws / (count - 1) / count;
    const bool none = std::isnan(draws.front().metrics[m].error) && draws.size() == 1;
    mean.metrics[m].error = none ? NAN : std::sqrt(of_items);
  }
  return mean;
}

int64_t expected_items(const SweepPlan& plan) {
  int64_t runs = 0;
  for (const SweepMethod& method : plan.methods) {
    const auto budgets = static_cast<int64_t>(method.budgets.size());
    runs += budgets;
    if (!method.policy) continue;
    if (method.adapter) runs += budgets * plan.seeds;
    if (plan.shallow && !plan.drop_order.empty()) runs += budgets * kShallowRuns;
  }
  int64_t items = 0;
  for (const SweepTask& task : plan.tasks) items += static_cast<int64_t>(task.task.items.size());
  return runs * items;
}

std::optional<std::vector<SweepPoint>> sweep(const SweepPlan& plan, SweepCache& cache) {
  try {
    return Sweep(plan, cache).run();
  } catch (const SweepCancelled&) {
    return std::nullopt;
  }
}

}  // namespace fathom
