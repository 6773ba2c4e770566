// A task from its items to its scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eval/batch_score.h"
#include "eval/metrics.h"
#include "eval/task.h"

namespace fathom {

struct EncodedTask {
  std::vector<ItemRequests> items;
  int64_t longest = 0;  // rows that a sequence needs
  int64_t cut = 0;      // items that lost tokens on the left, because the context is full
};
// What does not fit is a UserError that names task and item.
EncodedTask encode_task(const Task& task, const RequestEncoder& encoder);

// As many sequences as there are items for, and as a cache of moderate size holds: each takes the longest
// one's room.
int64_t sequences_for(const ModelConfig& config, const KvCacheOptions& cache, int64_t items, int64_t longest);

struct ItemResult {
  std::vector<TextScore> scores;  // of each option, of each window, or of having no answer (kGenerate)
  int64_t predicted = 0, predicted_norm = 0, predicted_token = 0;  // kChoice
  std::string text;                                                // kGenerate
  std::vector<Judgement> judgements;
};

struct TaskResult {
  std::vector<ItemResult> items;
  std::vector<Metric> metrics;  // the first is the task's own; none: it is not judged here
  std::vector<std::pair<std::string, std::vector<Metric>>> groups;
  double seconds = 0;
  bool cancelled = false;
};

// Each item's result is bit for bit the one it has alone.
TaskResult evaluate(Feeder& feeder, const Task& task, const EncodedTask& encoded,
                    const BatchOptions& options);

// The metrics of these items (indices), from their results.
std::vector<Metric> metrics_of(const Task& task, const EncodedTask& encoded,
                               const std::vector<ItemResult>& results, std::span<const size_t> items);

}  // namespace fathom
