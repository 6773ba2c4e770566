// The norms of a block, where the config places them.
#pragma once

#include "model/config.h"
#include "ops/rows/rms_norm.h"

namespace fathom {

inline Tensor norm(Context& ctx, const ModelConfig& config, const Tensor& x, const Tensor& weight) {
  return rms_norm(ctx, x, weight, {config.norm_eps, config.norm_weight_offset});
}

inline Tensor norm_before(Context& ctx, const ModelConfig& config, const Tensor& x, const Tensor& weight) {
  return config.norm_placement == NormPlacement::kAfter ? x : norm(ctx, config, x, weight);
}

inline Tensor norm_after(Context& ctx, const ModelConfig& config, const Tensor& x, const Tensor& weight) {
  return config.norm_placement == NormPlacement::kBefore ? x : norm(ctx, config, x, weight);
}

}  // namespace fathom
