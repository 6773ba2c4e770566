// Sums over rows, as the gradient of linear() has them, for their own sake. No gradients.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// a: f32 (rows, m), b: f32 (rows, n), dense, every row there; b on a GPU bf16 too, where m is at most 2.
// Returns aᵀ b: f32 (m, n).
Tensor transposed_product(Context& ctx, const Tensor& a, const Tensor& b);

// x: f32 (rows, m), dense, every row there. Returns f32 (m): the sum of the rows.
Tensor sum_rows(Context& ctx, const Tensor& x);

}  // namespace fathom
