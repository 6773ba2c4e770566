// LoRA that trains inside the weights: each matrix is W + scale · B A, rounded to its type, and its gradient
// is split into those of A and B. A step then costs what a step of all weights costs, and no row goes through
// thin products beside the wide ones. On a GPU in bf16, where that is faster, and where the sum is rounded to
// the type that it will be stored in (lora.round), so that training sees what serves; the gradient passes
// the rounding by. Without dropout, which works on the factors' input alone.
#pragma once

#include <vector>

#include "model/model.h"
#include "ops/linear/low_rank.h"

namespace fathom {

class MergedLora {
 public:
  // The matrices that have factors get new memory and gradients in `model`; those that were there
  // are W. All are f32 or all bf16, on the context's device; the factors f32 parameters there.
  MergedLora(Context& ctx, Model& model, MergeRounding rounding);

  void merge(Context& ctx);            // after the factors have moved
  void zero_gradients(Context& ctx);   // of the matrices, before a step
  void split_gradients(Context& ctx);  // after its last part

 private:
  struct Matrix {
    Tensor base, merged, gradient;
    LoraFactors* factors;
  };
  std::vector<Matrix> matrices_;
  Tensor gradients_;  // f32, of all matrices
  float scale_;
  MergeRounding rounding_;
};

}  // namespace fathom
