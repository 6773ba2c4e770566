#pragma once

#include "tensor/tensor.h"

namespace fathom {

// keys, positions: i32 (rows) -> f32 (rows), uniform in (0, 1): Philox of counter {a, b, key, position} under
// the seed (base/rng.h). A row's number depends on its own key and position, never on where it stands; the
// CPU and CUDA give the same bits.
Tensor uniform_noise(Context& ctx, uint64_t seed, uint32_t a, uint32_t b, const Tensor& keys,
                     const Tensor& positions);

}  // namespace fathom
