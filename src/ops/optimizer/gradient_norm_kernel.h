// Between gradient_norm.cc and its backends.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

inline constexpr int64_t kNormBlock = 4096;  // fixed: the order of the sum must not depend on the threads

// sums: room for an f64 for each block of x. out: i32 (2).
void gradient_norm_kernel(CpuBackend dev, const Tensor& x, Tensor& sums, Tensor& out);
void gradient_norm_kernel(CudaBackend dev, const Tensor& x, Tensor& sums, Tensor& out);

}  // namespace fathom
