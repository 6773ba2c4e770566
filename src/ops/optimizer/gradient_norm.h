#pragma once

#include "ops/rows/read_scalars.h"
#include "tensor/tensor.h"

namespace fathom {

// x: f32, dense. Returns i32 (2): the bits of Σ x², which is an f64, the low word first: the host reads them
// with the step's other numbers and asks norm_of(). Summed in f64, in one order at any number of threads.
Tensor gradient_norm(Context& ctx, const Tensor& x);

// The square root of the sum whose words these are.
double norm_of(Scalar low, Scalar high);

}  // namespace fathom
