// For the notes on a tape.
#pragma once

#include "ops/rows/accumulate.h"

namespace fathom {

// What a note needs of an input whose values its gradient does not use: shape, count, and where the gradient
// adds up. The input's memory is not held.
inline Tensor without_values(const Tensor& x) {
  return Tensor::view(x.device(), nullptr, x.dtype(), x.shape(), nullptr)
      .counted_like(x)
      .with_gradient(x.gradient());
}

// A tensor like x, not initialised: its gradient, or an output of its shape.
inline Tensor gradient_like(Context& ctx, const Tensor& x) {
  return Tensor::empty(ctx, DType::kF32, x.shape()).counted_like(x);
}

}  // namespace fathom
