#pragma once

#include "tensor/tensor.h"

namespace fathom {

struct RmsNormParams {
  float eps = 1e-6f;
  float weight_offset = 0.0f;  // Gemma's checkpoints store the weight less one
};

// x: f32 (…, d), weight: f32 (d) -> x / sqrt(mean(x²) + eps) · (weight + offset), over the last dimension.
Tensor rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params = {});

}  // namespace fathom
