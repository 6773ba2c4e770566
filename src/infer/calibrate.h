// Thresholds for a grid of budgets, found under skipping on held-out text.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "infer/calibration_run.h"

namespace fathom {

struct CalibrationPoint {
  float budget = 1;
  float achieved = 1;             // β on the calibration text; NaN: not asked for, it helps to interpolate
  float checked = NAN;            // on other text of the same kinds; NaN: there was none
  std::vector<float> thresholds;  // (2L)
  float held = NAN;               // of a dense cache's entries, on the calibration text; NaN: not measured
  std::vector<float> of_kinds = {};     // checked, for each of Calibration::kinds
  std::vector<float> settings() const;  // thresholds and steering, as a sequence is given them
  // Their standard errors over sequences, NaN where there is one sequence. Not stored with the table.
  std::vector<float> errors_of_kinds = {};
  // (4 · 2L): what steers them, the parts of Steering after the thresholds; empty: nothing does. The share of
  // a unit that is not steered is -1.
  std::vector<float> steering = {};
};

// The smallest budget that keeps the output near the unadapted model's: `calibrate --quality`.
struct CalibratedQuality {
  std::string measure;    // "kl": mean nats a token; "ppl": ratio of the perplexities
  float limit = 0;        // what was asked
  float budget = 1;       // the smallest that keeps it
  float bound = 0;        // measured there: the upper 95 % bound on the worst kind
  std::string kind = {};  // that kind
};

// A budget was asked for that the method's table, or its list, does not hold.
class OutOfReach : public UserError {
 public:
  using UserError::UserError;
};

// For one type of weights: rounding moves scores.
struct Calibration {
  std::string weight_type;
  // By falling budget. The first point is not one that was asked for: it is the most that the model can run,
  // which is 1, or what Skip-Middle was trained to. Its thresholds are where the scores begin.
  std::vector<CalibrationPoint> points;
  std::vector<std::string> kinds = {};  // of text, that the points were checked on
  std::vector<CalibratedQuality> qualities = {};

  std::vector<CalibrationPoint> asked() const;  // those that were asked for
  // A sequence's settings: linear between neighbouring points; at 1 nothing is skipped. A budget outside the
  // table is OutOfReach, which names its end.
  std::vector<float> thresholds(float budget) const;
  // The smallest budget whose measured bound keeps the limit. None: a UserError with what there is.
  float budget_for(const std::string& measure, float limit) const;
};

// Text that nothing is fitted to: to see what thresholds give there.
struct CheckText {
  std::string kind;
  CalibrationText text;
  bool calibrated = true;  // the thresholds are found on text of this kind
};

// Thresholds stay where they are found, or are steered: each sequence's follow what its earlier rows ran.
enum class Steer : uint8_t { kAuto, kOn, kOff };  // kAuto: where the method's traits say so

struct CalibrateOptions : CalibrationRunOptions {
  std::vector<float> budgets{0.95f, 0.9f, 0.8f, 0.7f, 0.6f, 0.5f};
  bool all_budgets = true;  // one that cannot be met is a UserError; false: it is left out
  float tolerance = 0.003f;
  int most_passes = 8;  // for each budget
  Steer steer = Steer::kAuto;
  std::vector<CheckText> check = {};
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
