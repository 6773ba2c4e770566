#include <array>

#include "model/norm.h"
#include "model/transformer.h"
#include "ops/linear/linear.h"
#include "ops/rows/gated_activation.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/scale_rows.h"

namespace fathom {

Tensor mlp(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision) {
  const RowSet& rows = decision.masked ? RowSet::all(h.dim(0)) : decision.kept;
  if (rows.is_none()) return {};
  const ModelConfig& config = model.config;
  const BlockWeights& block = model.weights.blocks[static_cast<size_t>(layer)];
  Tensor x = branch_input(ctx, model, layer, Unit::kFfn, h, decision, rows);
  if (decision.input_gate) x = scale_rows(ctx, x, gather_rows(ctx, decision.input_gate, rows));
  std::array<Tensor, 2> gate_up;  // (rows, ffn) each
  linear_group(ctx, x, std::array{block.gate, block.up}, std::array{block.gate_bias, block.up_bias}, gate_up);
  const Tensor inner = gated_activation(ctx, gate_up[0], gate_up[1], config.activation);
  return norm_after(ctx, config, linear(ctx, inner, block.down, block.down_bias), block.ffn_post_norm);
}

}  // namespace fathom
