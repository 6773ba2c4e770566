// Every weight a config asks for: its names in the two kinds of files, its shape, and where it lives.
// Loading, saving, converting and counting all walk this one list.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"

namespace fathom {

struct WeightSpec {
  std::string hf, gguf;  // names
  Shape shape;
  Tensor* tensor;
  bool matrix = false;        // may have any dtype; the rest are f32 vectors
  bool norm = false;          // stored less config.norm_weight_offset
  int64_t rotated_heads = 0;  // > 0: rows of q or k, whose order depends on the RoPE style
};

// In forward order. `weights.blocks` is resized to the config's layers. A tied output is not listed.
std::vector<WeightSpec> weight_specs(const ModelConfig& config, ModelWeights& weights);
std::vector<WeightSpec> weight_specs(const Model& model);  // to read only

// The rows of q or k (weight or bias) reordered between the two RoPE styles: in each head, the halves (0 …
// d/2−1, d/2 … d−1) become the pairs (0, d/2, 1, d/2+1, …), or back. A copy, on the CPU.
Tensor reorder_rotary_rows(const Tensor& weight, int64_t heads, RopeStyle from, RopeStyle to);

}  // namespace fathom
