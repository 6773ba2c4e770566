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

struct RoutedRows {
  Tensor normed;  // bf16 (rows, d): rms_norm() of x
  Tensor logit;   // f32 (rows): x · router; of a router of two rows, the second's less the first's
};

// Eq. 4 of SkipLayer, straight-through: rows have gone through scale_through() with p where they ran, 1 − p
// where not. Undefined: they have not.
struct ScaledThrough {
  Tensor p;    // f32 (rows)
  Tensor ran;  // f32 (rows): 1 where a row ran, else 0
};

// A norm in bf16 and a router that reads x itself in one pass, on a GPU while a tape records; their gradient
// is one pass too, which reads the normed rows and not x: x may change in place. router: f32 (1 or 2, d).
// That of scaled.p is ±⟨dx_r, x_r⟩, of the whole gradient of x: no op may have read x before this one. x must
// be differentiable.
RoutedRows rms_norm_routed(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params,
                           const Tensor& router, const ScaledThrough& scaled = {});

}  // namespace fathom
