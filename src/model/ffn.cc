#include <array>

#include "model/lora.h"
#include "model/transformer.h"
#include "ops/rows/gated_activation.h"

namespace fathom {

Tensor mlp(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
           const Batch& batch, Tensor* sum) {
  const RowSet rows = decision.masked ? RowSet::all(h.dim(0)) : decision.kept;
  if (rows.is_none()) return {};
  const ModelConfig& config = model.config;
  const BlockWeights& block = model.weights.blocks[static_cast<size_t>(layer)];
  const DType type = activation_type(ctx, model, block.gate);
  const Tensor x = branch_input(ctx, model, layer, Unit::kFfn, h, decision, rows, type);
  const bool inner_f32 = block.gate_bias || block.up_bias || block.gate.dim(0) % 8 != 0;
  std::array<Tensor, 2> gate_up;  // (rows, ffn) each
  const ProjectionCall call{model, layer, batch, rows};
  project_group(ctx, call, x, std::array{Projection::kGate, Projection::kUp}, gate_up,
                inner_f32 ? DType::kF32 : type);
  const Tensor inner = gated_activation(ctx, gate_up[0], gate_up[1], config.activation);
  return branch_output(ctx, call, inner, Projection::kDown, block.ffn_post_norm, h, decision, sum);
}

}  // namespace fathom
