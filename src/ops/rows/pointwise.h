// Functions of one element, and sums and products of two tensors of one shape. f32, any shape; compacted
// tensors stay so.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

enum class Unary : uint8_t {
  kSigmoid,
  kRelu,  // derivative 0 at 0
  kSilu,
  kSquare,
  kAbs,       // derivative 0 at 0
  kLogFloor,  // ln max(x, 1e-6); derivative 0 below
  kClamp01,   // derivative 0 where x ≤ 0 or x ≥ 1
  kLogit,     // ln(x / (1 − x)), x clamped to [1e-6, 1 − 1e-6]; derivative 0 outside
};

Tensor apply(Context& ctx, Unary function, const Tensor& x);

Tensor affine(Context& ctx, const Tensor& x, float scale, float shift);  // scale · x + shift

Tensor add(Context& ctx, const Tensor& a, const Tensor& b);

Tensor multiply(Context& ctx, const Tensor& a, const Tensor& b);

}  // namespace fathom
