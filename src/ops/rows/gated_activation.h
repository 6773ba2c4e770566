#pragma once

#include "tensor/tensor.h"

namespace fathom {

enum class Activation : uint8_t { kSilu, kGeluTanh };

// gate, up: f32 (rows, d) -> act(gate) ⊙ up: SwiGLU, GeGLU.
Tensor gated_activation(Context& ctx, const Tensor& gate, const Tensor& up, Activation activation);

}  // namespace fathom
