// Thresholds for a grid of budgets, found under skipping on held-out text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "skip/method_policy.h"

namespace fathom {

struct CalibrationPoint {
  float budget = 1, achieved = 1;  // β asked for, and measured on the calibration text
  std::vector<float> thresholds;   // (2L)
};

// For one type of weights: rounding moves scores.
struct Calibration {
  std::string weight_type;
  std::vector<CalibrationPoint> points;  // budgets fall
  // Linear between neighbouring points. Below the smallest budget: a UserError that names it.
  std::vector<float> thresholds(float budget) const;
};

struct CalibrateOptions {
  std::vector<float> budgets{0.95f, 0.9f, 0.8f, 0.7f, 0.6f, 0.5f};
  float tolerance = 0.005f;
  int most_passes = 8;                               // for each budget
  DType k_type = DType::kF16, v_type = DType::kF16;  // of the cache: its rounding moves scores, too
  std::function<void(int64_t passes)> on_progress = nullptr;
};

// batches: whole sequences, each batch one pass. A method that has nothing to set (a fixed list of units) is
// a UserError, and so is a budget that its units cannot reach.
Calibration calibrate(Context& ctx, const Model& model, const MethodPolicy& policy,
                      std::span<const std::vector<BatchRow>> batches, const CalibrateOptions& options);

// "q4_1", …: of most of the blocks' weights.
std::string weight_type_name(const Model& model);

// The tables of an adapter, one per type of weights, as the JSON it keeps them in. A number that is not there
// or cannot be is a UserError that begins with `where`.
std::vector<Calibration> calibrations_from_json(const std::string& text, int64_t units,
                                                const std::string& where);
std::string calibrations_to_json(std::span<const Calibration> tables);

}  // namespace fathom
