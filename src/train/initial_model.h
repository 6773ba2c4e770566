// A new model with random weights.
#pragma once

#include "model/model.h"

namespace fathom {

struct InitialWeights {
  float std = 0.02f;          // of every matrix: N(0, std)
  bool scale_output = false;  // projections into the residual divided by sqrt(2 · layers) (GPT-2)

  template <class V>
  void visit(V& v) {
    v("std", std, "standard deviation of the matrices at the start");
    v("scale_output", scale_output, "divide that of the projections into the residual by sqrt(2 · layers)");
  }
};

// Every weight of the config, f32, on the CPU: matrices normal, norms 1, biases 0. Each weight's numbers
// depend on the seed and its place in the list alone.
Model initial_model(Context& ctx, const ModelConfig& config, const InitialWeights& init, uint64_t seed);

}  // namespace fathom
