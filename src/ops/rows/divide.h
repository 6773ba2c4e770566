#pragma once

#include "tensor/tensor.h"

namespace fathom {

// a, b: f32 of one shape, dense, every row there. Returns a / b, and 0 where b is 0. No gradients.
Tensor divide(Context& ctx, const Tensor& a, const Tensor& b);

}  // namespace fathom
