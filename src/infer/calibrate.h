// Thresholds for a grid of budgets, found under skipping on held-out text.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "skip/method_policy.h"

namespace fathom {

struct CalibrationPoint {
  float budget = 1;
  float achieved = 1;   // β on the calibration text; NaN: not measured, it lies between two that were
  float checked = NAN;  // measured on other text; NaN: there was none
  std::vector<float> thresholds;  // (2L)
  float held = NAN;               // of a dense cache's entries, on the calibration text; NaN: not measured
};

// For one type of weights: rounding moves scores.
struct Calibration {
  std::string weight_type;
  // Budgets fall, thresholds rise. The first is no budget that was asked for but the most that the model can
  // run: 1, or what Skip-Middle was trained to; its thresholds are where the scores begin.
  std::vector<CalibrationPoint> points;
  std::vector<CalibrationPoint> asked() const;  // those that were asked for
  // Linear between neighbouring points; at 1 nothing is skipped. A budget outside the table is a UserError
  // that names its end.
  std::vector<float> thresholds(float budget) const;
};

using CalibrationText = std::vector<std::vector<BatchRow>>;  // whole sequences, each batch one pass

struct CalibrateOptions {
  std::vector<float> budgets{0.95f, 0.9f, 0.8f, 0.7f, 0.6f, 0.5f};
  bool all_budgets = true;  // one that cannot be met is a UserError; false: it is left out
  float tolerance = 0.005f;
  int most_passes = 8;                               // for each budget
  DType k_type = DType::kF16, v_type = DType::kF16;  // of the cache: its rounding moves scores, too
  CalibrationText check{};                           // other text, to see what the thresholds give there
  std::function<void(int64_t passes)> on_progress = nullptr;
};

// A method that has nothing to set (a fixed list of units) is a UserError.
Calibration calibrate(Context& ctx, const Model& model, const MethodPolicy& policy,
                      const CalibrationText& text, const CalibrateOptions& options);

// "q4_1", …: of most of the blocks' weights.
std::string weight_type_name(const Model& model);

// The tables of an adapter, one per type of weights, as the JSON it keeps them in. A number that is not there
// or cannot be is a UserError that begins with `where`.
std::vector<Calibration> calibrations_from_json(const std::string& text, int64_t units,
                                                const std::string& where);
std::string calibrations_to_json(std::span<const Calibration> tables);

}  // namespace fathom
