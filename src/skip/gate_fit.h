// The first stage of GateSkip's two-stage gate: a scalar head per gate, fitted to the gate's own output.
#pragma once

#include "skip/method.h"

namespace fathom {

struct GateFit {
  int64_t rows = 0;      // fitted on
  double error = 0;      // root mean square of head − logit ḡ, over all gates
  double explained = 0;  // 1 − squared error / variance, over all gates
};

struct GateHead {
  Tensor weight, bias;  // (1, width), (1), on the CPU
};

// Where gates and their inputs are read.
struct GateReading {
  const SkipPolicy& policy;  // its score is ḡ, the mean of the gate
  bool residual;             // gates read the residual stream; false: the unit's normalised input
};

// Least squares of logit ḡ on the gate's input over the batches, each a whole pass at full depth; `ridge`,
// relative to the inputs' mean square, keeps directions that never vary at 0. Fills the heads: one for each
// unit, or two that all attention and all FFN share.
GateFit fit_gate_heads(Context& ctx, const GateReading& reading, const Model& model,
                       std::span<const Batch> batches, std::span<const GateHead> heads, double ridge = 1e-4);

}  // namespace fathom
