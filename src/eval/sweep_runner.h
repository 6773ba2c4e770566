// One model under one policy through one task: what is kept is taken, the rest is run and kept.
#pragma once

#include "eval/sweep_cache.h"
#include "skip/method_policy.h"

namespace fathom {

struct SweepTask {
  Task task;
  EncodedTask encoded;
};

struct SweepModel {
  Context& ctx;
  const Model& model;
};

struct SweepRun {
  std::string name;  // unique among the runs of a sweep
  const SweepModel& model;
  const MethodPolicy* policy = nullptr;    // null: dense
  std::span<const float> thresholds = {};  // (2L); empty: the policy's own rule
};

struct SweepOutcome {
  std::vector<ItemResult> items;
  WorkBooks books;
  double seconds = 0;
  SweepSpeed speed;
};

struct RunnerOptions {
  DType k_type = DType::kF16, v_type = DType::kF16;
  int64_t decode_tokens = 16, rounds = 12;  // of the measurement of speed
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(int64_t items)> on_progress = nullptr;  // that were run
  std::function<void(int64_t items)> on_kept = nullptr;      // that were there already
};

struct SweepCancelled {};  // thrown; what is done is kept

class SweepRunner {
 public:
  static constexpr size_t kItemsOfChunk = 16;

  SweepRunner(SweepCache& cache, const RunnerOptions& options) : cache_(cache), options_(options) {}

  // Items run in chunks of fixed borders, so that neither results nor work depend on what was kept.
  SweepOutcome run(const SweepRun& run, const SweepTask& task);

 private:
  SweepChunk run_chunk(Feeder& feeder, const SweepRun& run, const SweepTask& task, size_t begin);
  SweepSpeed measure(const SweepRun& run, const SweepTask& task);
  void stop_if_cancelled() const;

  SweepCache& cache_;
  RunnerOptions options_;
};

}  // namespace fathom
