#include <array>

#include "model/norm.h"
#include "model/transformer.h"
#include "ops/gated_activation.h"
#include "ops/linear.h"

namespace fathom {

Tensor mlp(Context& ctx, const Model& model, int64_t layer, const Tensor& x) {
  const ModelConfig& config = model.config;
  const BlockWeights& block = model.weights.blocks[static_cast<size_t>(layer)];
  std::array<Tensor, 2> gate_up;  // (rows, ffn) each
  linear_group(ctx, norm_before(ctx, config, x, block.ffn_norm), std::array{block.gate, block.up},
               std::array{block.gate_bias, block.up_bias}, gate_up);
  const Tensor inner = gated_activation(ctx, gate_up[0], gate_up[1], config.activation);
  return norm_after(ctx, config, linear(ctx, inner, block.down, block.down_bias), block.ffn_post_norm);
}

}  // namespace fathom
