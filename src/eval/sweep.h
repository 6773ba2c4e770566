// Quality against savings: methods × budgets × tasks, every point beside random skipping at its skip ratio
// and a shallower dense model at its FLOPs.
#pragma once

#include <optional>

#include "eval/sweep_runner.h"

namespace fathom {

struct SweepBudget {
  std::optional<double> asked;    // none: the method's own rule
  std::vector<float> thresholds;  // (2L); empty: the same
};

// A policy on a model, at several budgets. The first of a sweep is what others are compared with.
struct SweepMethod {
  std::string label;  // unique among the sweep's
  const SweepModel& model;
  const MethodPolicy* policy = nullptr;  // null: dense, and one budget without thresholds
  std::string identity = {};             // of what it has learned
  bool adapter = false;  // the model without it (with its LoRA) is dense: random skipping can run on it
  std::vector<SweepBudget> budgets = {};
};

// What a point gave, measured or, of a shallower model, between two that were.
struct SweepScore {
  std::vector<Metric> metrics;  // the first is the task's own; none: not judged
  // skip ratio, block and net FLOPs: over the task's items. Net bytes: of tokens decoded one at a time. Net
  // FLOPs are against the first method's dense model.
  Savings savings;
  double seconds = 0, tokens_per_s = 0;                           // of the items, in shared passes
  double decode_tokens_per_s = 0, dense_decode_tokens_per_s = 0;  // one sequence, in turns
};

enum class PointKind : uint8_t {
  kDense,
  kMethod,
  kShallow,  // the first model with some units dropped
};

struct SweepPoint {
  PointKind kind = PointKind::kDense;
  std::string label = {}, method = {}, task = {};  // method: its name
  std::optional<double> budget = {};
  int64_t dropped_units = 0;
  int64_t items = 0, truncated = 0;
  SweepScore score = {};
  std::optional<SweepScore> random = {}, shallow = {};
  std::vector<SweepScore> random_seeds = {};
  // This less the task's first dense model, its random and its shallower one, metric by metric on the same
  // items (paired_difference); empty: there is none.
  std::vector<Metric> to_dense = {}, to_random = {}, to_shallow = {};
};

struct SweepPlan {
  std::vector<SweepMethod> methods;
  std::vector<SweepTask> tasks;
  RunnerOptions runner;
  std::string settings;  // whatever else results depend on
  // Seeds of random skipping, in the layers that the method does not protect; 0: no random skipping.
  int64_t seeds = 3;
  uint64_t seed = 0;
  // Shallower models: the units of the first method's model in the order in which they go. Empty: the dense
  // models among the methods serve, where there are several.
  bool shallow = true;
  std::vector<int32_t> drop_order;
  std::function<void(int64_t items)> on_fewer = nullptr;      // than expected_items() said
  std::function<void(const SweepPoint&)> on_point = nullptr;  // its baselines are there
};

// Items to be run, about, if nothing is kept.
int64_t expected_items(const SweepPlan& plan);

// None: cancelled. What is kept from other models, adapters, thresholds, tasks or settings is a UserError.
std::optional<std::vector<SweepPoint>> sweep(const SweepPlan& plan, SweepCache& cache);

// Between two scores: 0 is a, 1 is b; so are the items' own. Errors are added as if they went together: they
// are of the same items.
SweepScore between(const SweepScore& a, const SweepScore& b, double place);

// Several draws of one thing: means; the error holds that of the items and that of the draws.
SweepScore mean_of(std::span<const SweepScore> draws);

}  // namespace fathom
