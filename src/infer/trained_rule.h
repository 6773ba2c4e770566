// The thresholds of a method without a budget, where training drew rows at random. Thresholding the same
// scores would run another share of the rows than the weights have learned with.
#pragma once

#include <string>
#include <vector>

#include "infer/calibration_run.h"

namespace fathom {

struct TrainedRule {
  float trained = 0;              // share of (row, unit) pairs that training skipped at its end
  float served = 0;               // the same on the same text, at the thresholds or by the method's own rule
  std::vector<float> thresholds;  // (2L); empty: the method's own rule
};

// Every unit skips the share of its rows that it skips in a training pass over the text at this step; found
// in the order of the network, on the scores that rows have when the units below have skipped. A method that
// does not ask for it (MethodTraits::keeps_density) has no thresholds, only the two shares. cancel: when set,
// it ends with CalibrationCancelled.
TrainedRule find_trained_rule(Context& ctx, const Model& model, const MethodPolicy& policy,
                              const std::vector<BatchRow>& rows, const TrainingStep& step,
                              const std::atomic<bool>* cancel = nullptr);

// A number that is not there or cannot be is a UserError that begins with `where`.
TrainedRule trained_rule_from_json(const std::string& text, int64_t units, const std::string& where);
std::string to_json(const TrainedRule& rule);

}  // namespace fathom
