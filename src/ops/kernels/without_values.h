// What an op's note on the tape keeps of an input: its shape, and room for its gradient.
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

// Room for the gradient of x, not initialised: of its shape, bf16 where x is. Rows stand apart where x has a
// part of a GradientRoom.
inline Tensor gradient_like(Context& ctx, const Tensor& x) {
  const Gradient* gradient = x.gradient().get();
  if (!gradient || !gradient->room || gradient->value) {
    const DType type = x.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32;
    return Tensor::empty(ctx, type, x.shape()).counted_like(x);
  }
  GradientRoom& room = *gradient->room;
  if (!room.memory) room.memory = Tensor::empty(ctx, room.dtype, room.shape);
  return room.memory.columns(gradient->column, x.numel() / x.dim(0)).reshape(x.shape()).counted_like(x);
}

}  // namespace fathom
