#pragma once

#include "tensor/tensor.h"

namespace fathom {

// x: f32 (rows, d); gate: f32 (rows), one number per row, or (rows, d) -> x · gate.
Tensor scale_rows(Context& ctx, const Tensor& x, const Tensor& gate);

}  // namespace fathom
