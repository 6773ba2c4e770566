// A text run through a model under a method, as inference goes, to see what thresholds give.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "base/error.h"
#include "model/kv_cache.h"
#include "model/transformer.h"
#include "skip/method_policy.h"

namespace fathom {

using CalibrationText = std::vector<std::vector<BatchRow>>;  // whole sequences; how they are cut into batches
                                                             // changes nothing
// Thrown when CalibrationRunOptions::cancel is set.
class CalibrationCancelled : public UserError {
 public:
  CalibrationCancelled() : UserError("calibration was interrupted: nothing is stored") {}
};

struct CalibrationRunOptions {
  DType k_type = DType::kF16, v_type = DType::kF16;  // of the cache: its rounding moves scores, too
  const std::atomic<bool>* cancel = nullptr;         // heard before every unit of a pass
  std::function<void(int64_t passes)> on_progress = nullptr;
};

// What a text took: its share of the dense multiply-adds, of the dense cache's entries, and of the (row,
// unit) pairs.
struct CalibrationOutcome {
  float beta = 1, held = 1, ran = 1;
};

// Of one sequence: the blocks' multiply-adds that ran, and those of full depth.
struct SequenceWork {
  double ran = 0, dense = 0;
};

class CalibrationRunner {
 public:
  CalibrationRunner(Context& ctx, const Model& model, const MethodPolicy& policy,
                    CalibrationRunOptions options)
      : ctx_(ctx), model_(model), policy_(policy), options_(std::move(options)) {}

  // At these thresholds, as SkipState takes them. `scores` (2L): gets every row's score at every unit that
  // was asked.
  CalibrationOutcome run(const CalibrationText& text, const std::vector<float>& thresholds,
                         std::vector<std::vector<float>>* scores = nullptr) const;

  // The same, a pass for each sequence. A row decides the same whatever rows share its pass.
  std::vector<SequenceWork> each(const CalibrationText& text, const std::vector<float>& thresholds) const;

  // The blocks' multiply-adds at full depth.
  double dense_madds(const CalibrationText& text) const;

  // Finds thresholds on the way, and what steers them, in the order of the network. All sequences run in one
  // pass, because what is found at a unit depends on all rows.
  CalibrationOutcome fit(const CalibrationText& text, ThresholdFit& fit) const;

 private:
  struct Totals {
    uint64_t madds = 0, dense = 0;
    int64_t held = 0, dense_held = 0;
    uint64_t unit_rows = 0, dense_unit_rows = 0;
    CalibrationOutcome outcome() const;
  };
  void pass(const std::vector<BatchRow>& rows, const std::vector<float>* thresholds,
            std::vector<std::vector<float>>* scores, ThresholdFit* fit, Totals& totals) const;
  int64_t entries_held(KvCache& cache) const;

  Context& ctx_;
  const Model& model_;
  const MethodPolicy& policy_;
  CalibrationRunOptions options_;
};

// A cache with room for these rows.
KvCache cache_for(Context& ctx, const ModelConfig& config, const SkipPolicy& policy,
                  const std::vector<BatchRow>& rows, const CalibrationRunOptions& options);

// The rows of each sequence of all batches, in order; every one is numbered as sequence 0.
std::vector<std::vector<BatchRow>> sequences_of(const CalibrationText& text);

// Returns the sequences of all batches as one batch, numbered from 0.
std::vector<BatchRow> joined(const CalibrationText& text);

}  // namespace fathom
