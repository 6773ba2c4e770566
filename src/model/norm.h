// The norms of a block, where the config places them.
#pragma once

#include "model/config.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/rms_norm.h"

namespace fathom {

// type: of the result, f32 or bf16 (rms_norm).
inline Tensor norm(Context& ctx, const ModelConfig& config, const Tensor& x, const Tensor& weight,
                   DType type = DType::kF32) {
  return rms_norm(ctx, x, weight, {config.norm_eps, config.norm_weight_offset}, type);
}

// Of the kept rows of x.
inline Tensor norm_before(Context& ctx, const ModelConfig& config, const Tensor& x, const RowSet& kept,
                          const Tensor& weight, DType type = DType::kF32) {
  if (config.norm_placement == NormPlacement::kAfter) return gather_rows(ctx, x, kept);
  return rms_norm_rows(ctx, x, kept, weight, {config.norm_eps, config.norm_weight_offset}, type);
}

inline Tensor norm_after(Context& ctx, const ModelConfig& config, const Tensor& x, const Tensor& weight) {
  return config.norm_placement == NormPlacement::kBefore ? x : norm(ctx, config, x, weight);
}

}  // namespace fathom
