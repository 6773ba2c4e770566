#pragma once

#include "tensor/tensor.h"

namespace fathom {

// x: f32 (rows, width), rows may be strided; out: bf16 (rows, width), dense. Rounds to nearest, ties to even.
void round_to_bf16(Context& ctx, const Tensor& x, Tensor& out);

}  // namespace fathom
