// The first stage of GateSkip's two-stage gate: a scalar head per gate, fitted to what the gate itself would
// say.
#pragma once

#include "skip/method_policy.h"

namespace fathom {

struct GateFit {
  int64_t rows = 0;      // fitted on
  double error = 0;      // root mean square of head − logit ḡ, over all gates
  double explained = 0;  // 1 − squared error / variance, over all gates
};

// Does the policy have two-stage gates? Then training ends with fit_gate_heads().
bool has_gate_heads(MethodPolicy& policy);

// Least squares of logit ḡ (the mean of the gate) on the gate's input over the batches, each a whole pass at
// full depth; `ridge`, relative to the inputs' mean square, keeps directions that never vary at 0. Fills the
// head tensors of a policy with two_stage gates, on the CPU; a UserError where it has none.
GateFit fit_gate_heads(Context& ctx, MethodPolicy& policy, const Model& model, std::span<const Batch> batches,
                       double ridge = 1e-4);

}  // namespace fathom
