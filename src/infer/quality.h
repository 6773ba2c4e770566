// How far a method's output is from the base at full depth, without the method and without the adapter's
// LoRA: the dial by quality instead of work.
#pragma once

#include <string>

#include "infer/calibrate.h"

namespace fathom {

struct QualityLimit {
  std::string measure;  // "kl" or "ppl"
  float limit = 0;
};

// "kl=0.2", "ppl=1.1". Anything else is a UserError that says so.
QualityLimit parse_quality(const std::string& text);

// Of a text at thresholds, per token: a mean over all of them and the standard error of the sequences' means.
struct Estimate {
  double mean = 0, error = 0;
  int64_t sequences = 2;
  double upper() const;  // 95 %, one side, by Student's t: few sequences tell little of how they spread
};
// The number that 95 % of Student's t lie below. freedom: its degrees, at least 1.
double student_95(int64_t freedom);

struct Divergence {
  Estimate kl;   // KL(base ‖ model under its method), nats
  Estimate nll;  // by how much the next token's negative log-likelihood is higher, nats
};

// What is compared: the base at full depth, and the model under its method.
struct Compared {
  const Model& base;   // without the adapter's LoRA; the model itself where there is none
  const Model& model;  // of the same shape
  const MethodPolicy& policy;
};
Divergence divergence(Context& ctx, const Compared& compared, const CalibrationText& text,
                      const std::vector<float>& thresholds, const CalibrationRunOptions& options);

// The same between two models of one shape at full depth: KL(base ‖ adapted).
Divergence divergence_of(Context& ctx, const Model& base, const Model& adapted, const CalibrationText& text,
                         const CalibrationRunOptions& options);

// The smallest budget of the table that keeps the limit on every kind of text, as an upper 95 % bound. Where
// no budget keeps it, a UserError names the smallest and the largest bound, with their budgets.
CalibratedQuality calibrate_quality(Context& ctx, const Compared& compared, const Calibration& table,
                                    const QualityLimit& limit, const CalibrateOptions& options);

}  // namespace fathom
