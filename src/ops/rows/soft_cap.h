#pragma once

#include "tensor/tensor.h"

namespace fathom {

// cap · tanh(x / cap), element by element (Gemma-2's logits).
Tensor soft_cap(Context& ctx, const Tensor& x, float cap);

}  // namespace fathom
