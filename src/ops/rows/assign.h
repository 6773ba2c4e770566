#pragma once

#include "tensor/tensor.h"

namespace fathom {

// `to` takes the values of `from` (same dtype and shape): in place, so that they outlive the arena's scope.
// While a tape is attached, `to` becomes `from` itself: memory is counted there, and gradients go on.
void assign(Context& ctx, Tensor& to, const Tensor& from);

}  // namespace fathom
