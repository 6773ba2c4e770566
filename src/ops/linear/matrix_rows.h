// Rows of a weight matrix of any type and layout, on the CPU.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

void decode_matrix_row(const Tensor& matrix, int64_t row, float* out);

// A copy in fours, of a matrix whose type has that layout and whose rows are whole fours; and a copy with one
// row after another.
Tensor in_fours(Context& ctx, const Tensor& matrix);
Tensor in_rows(Context& ctx, const Tensor& matrix);

}  // namespace fathom
