// LoRA that trains inside the weights: each matrix is W + scale · B A, rounded to bf16, and its gradient is
// split into those of A and B. A step then costs what a step of all weights costs, and no row goes through
// thin products beside the wide ones. On a GPU in bf16, where that is faster; without dropout, which works on
// the factors' input alone.
#pragma once

#include <vector>

#include "model/model.h"

namespace fathom {

class MergedLora {
 public:
  // The matrices that have factors get new memory and gradients in `model`; those that were there
  // are W. All are bf16 on the context's device; the factors f32 parameters there.
  MergedLora(Context& ctx, Model& model);

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
};

}  // namespace fathom
