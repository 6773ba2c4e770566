#pragma once

#include "tensor/rows.h"

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

// The same of the kept rows of x, (rows, d): rms_norm() of gather_rows(). In bf16 that is one pass, and the
// gradient needs the result alone: x may change in place.
Tensor rms_norm_rows(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& weight,
                     RmsNormParams params = {}, DType type = DType::kF32);

}  // namespace fathom
