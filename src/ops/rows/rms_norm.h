#pragma once

#include "tensor/tensor.h"

namespace fathom {

struct RmsNormParams {
  float eps = 1e-6f;
  float weight_offset = 0.0f;  // Gemma's checkpoints store the weight less one
};

inline constexpr int64_t kWidestBf16Norm = 4096;

// x: f32 (…, d), weight: f32 (d) -> x / sqrt(mean(x²) + eps) · (weight + offset), over the last dimension, in
// `type`: f32, or on a GPU bf16, whose gradient arrives in bf16 too.
Tensor rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params = {},
                DType type = DType::kF32);

}  // namespace fathom
