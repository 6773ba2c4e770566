// The points of a sweep (eval/sweep.h), put together for tables and curves.
#pragma once

#include "eval/sweep.h"
#include "report/table.h"

namespace fathom {

// The task's own metric; null: it is not judged.
const Metric* main_metric(const SweepScore& score);

// Perplexities are drawn and averaged as their logarithms: a random model's would flatten everything else.
bool is_perplexity(const std::string& metric);

// "arc_challenge"; of a user's file its name without folders.
std::string task_name(const std::string& task);

// Each task's, in the order of the sweep.
std::vector<std::string> tasks_of(const std::vector<SweepPoint>& points);
std::vector<SweepPoint> of_task(const std::vector<SweepPoint>& points, const std::string& task);

// Every point that all tasks with a share of right answers have, averaged over them, as if of one task. Empty
// where there are not two of these.
std::vector<SweepPoint> mean_points(const std::vector<SweepPoint>& points);

double speed_up(const SweepScore& score);

// A row for each dense model and each method at each budget, its baselines beside it.
Table point_table(const std::vector<SweepPoint>& points);

std::string budget_text(const SweepPoint& point);  // "0.9", "own rule"
std::string value_text(const Metric* metric);      // "0.431 ± 0.035"

// Of the task's own metric: "+0.021 ± 0.012 level", "–" where there is nothing to compare.
std::string difference_text(const std::vector<Metric>& differences);

}  // namespace fathom
