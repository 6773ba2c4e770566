#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace fathom {

struct DropoutParams {
  float rate = 0;       // in [0, 1): the share that becomes 0
  uint64_t seed = 0;    // of the step
  uint32_t stream = 0;  // of the place in the network
};

// x: f32 (rows, d) -> 0 with probability `rate`, else x / (1 − rate). keys, positions: i32 (rows). What
// becomes 0 in column c is Philox of counter {stream, c / 4, key, position} under the seed (base/rng.h),
// never a matter of where the row stands; the CPU and CUDA drop the same.
Tensor dropout(Context& ctx, const Tensor& x, const DropoutParams& params, const Tensor& keys,
               const Tensor& positions);

}  // namespace fathom
