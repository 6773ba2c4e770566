#pragma once

#include "tensor/tensor.h"

namespace fathom {

// Every element of `out` (f32, dense) becomes `value`, on the device: nothing is copied there.
void fill(Context& ctx, Tensor& out, float value);

// f32 (1), on the context's device.
Tensor scalar(Context& ctx, float value);

}  // namespace fathom
