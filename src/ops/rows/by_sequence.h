// One value per sequence from its rows, and back.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// x: f32 (rows, d); sequence: i32 (rows), each in [0, sequences); weights: f32 (rows), undefined: 1 ->
// (sequences, d): Σ w x / Σ w over the sequence's rows, in row order; zeros where Σ w = 0. No gradient to the
// weights.
Tensor mean_by_sequence(Context& ctx, const Tensor& x, const Tensor& sequence, const Tensor& weights,
                        int64_t sequences);

// s: f32 (sequences) -> (rows): s[sequence[r]].
Tensor expand_by_sequence(Context& ctx, const Tensor& s, const Tensor& sequence);

}  // namespace fathom
