#pragma once

#include <span>

#include "tensor/tensor.h"

namespace fathom {

// parts: f32 (rows) each, every row there. Returns (all rows), one part after another. No gradients.
Tensor concatenate(Context& ctx, std::span<const Tensor> parts);

}  // namespace fathom
