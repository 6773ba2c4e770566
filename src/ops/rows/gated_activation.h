#pragma once

#include "tensor/tensor.h"

namespace fathom {

enum class Activation : uint8_t { kSilu, kGeluTanh };

// gate, up: f32 (rows, d) -> act(gate) ⊙ up: SwiGLU, GeGLU. On a GPU also bf16 with d a multiple of 8, for a
// result in bf16.
Tensor gated_activation(Context& ctx, const Tensor& gate, const Tensor& up, Activation activation);

}  // namespace fathom
