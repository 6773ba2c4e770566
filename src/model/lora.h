// LoRA: low-rank additions to the matrices of the blocks, beside weights that stay as they are.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/batch.h"
#include "model/model.h"

namespace fathom {

std::string_view name_of(Projection projection);  // "q_proj", as PEFT's target_modules name it
Tensor& weight_of(BlockWeights& block, Projection projection);
const Tensor& weight_of(const BlockWeights& block, Projection projection);
const Tensor& bias_of(const BlockWeights& block, Projection projection);

// A matrix that can have factors.
struct LoraSpec {
  std::string name;  // "model.layers.3.self_attn.q_proj"
  int64_t layer = 0;
  Projection projection = Projection::kQ;
  int64_t in = 0, out = 0;
  int64_t rotated_heads = 0;  // as WeightSpec::rotated_heads: B's rows have the matrix's order
  LoraFactors* factors = nullptr;
};

// Every matrix of every block, in forward order. `lora.blocks` is resized to the config's layers.
std::vector<LoraSpec> lora_specs(const ModelConfig& config, Lora& lora);
// Those that have factors, to read only.
std::vector<LoraSpec> lora_specs(const Model& model);

// Throws a UserError that names the first target that is none of the seven. Empty: all of them.
void check_lora_targets(std::span<const std::string> targets, const std::string& where);

// f32 on the CPU: A ~ N(0, 1/in), B = 0, so that it changes nothing yet. targets: as check_lora_targets.
Lora initial_lora(const ModelConfig& config, int64_t rank, float alpha, std::span<const std::string> targets,
                  uint64_t seed);

// The rows of a layer that are multiplied.
struct ProjectionCall {
  const Model& model;
  int64_t layer;
  const Batch& batch;
  const RowSet& rows;  // of the batch
};

// outputs[i] = x Wᵀ + b of the i-th matrix, with what its factors add. At most three matrices, which take the
// same input. x: (rows, in). type: of the outputs. Both f32, or as linear_group() takes them where no factors
// stand beside the weights.
void project_group(Context& ctx, const ProjectionCall& call, const Tensor& x,
                   std::span<const Projection> which, std::span<Tensor> outputs, DType type = DType::kF32);
Tensor project_one(Context& ctx, const ProjectionCall& call, const Tensor& x, Projection which,
                   DType type = DType::kF32);

}  // namespace fathom
