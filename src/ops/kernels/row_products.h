// ⟨a_r, b_r⟩ for each row: the gradient of whatever multiplies a row.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// a, b: f32 (rows, d) -> out (rows), for the rows of a that are there.
void row_products_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void row_products_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out);

}  // namespace fathom
