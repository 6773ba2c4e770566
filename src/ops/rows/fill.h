#pragma once

#include "tensor/tensor.h"

namespace fathom {

// out: dense f32; every element becomes `value`, those of rows that are not there too.
void fill(Context& ctx, Tensor& out, float value);

}  // namespace fathom
