#pragma once

#include "tensor/tensor.h"

namespace fathom {

// Every element of out (dense f32) becomes `value`, also in rows past its count.
void fill(Context& ctx, Tensor& out, float value);

}  // namespace fathom
