// What a run would take, before it starts.
#pragma once

#include <cstdint>

#include "train/config.h"

namespace fathom {

struct TrainEstimate {
  int64_t parameters = 0, method_parameters = 0, trained = 0;
  int64_t tokens_per_step = 0, tokens = 0;
  double flops_per_token = 0;  // forward and backward, dense: two for each multiply-add
  double flops = 0;
  int64_t memory_bytes = 0;  // values, gradients, optimiser and activations, about
  double seconds = 0;        // at the speed that one product has here now
};

TrainEstimate estimate_run(Context& ctx, const Recipe& recipe, const ModelConfig& model);

}  // namespace fathom
