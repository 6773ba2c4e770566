// LoRA inside the weights: a low-rank product added to a matrix, and its gradient given back to the factors.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// out = w + scale · B A, rounded once. w, out: bf16 (out, in). a: f32 (rank, in), b: f32 (out, rank).
void merge_low_rank(Context& ctx, const Tensor& w, const Tensor& a, const Tensor& b, float scale,
                    Tensor& out);

// da += scale · Bᵀ dw, db += scale · dw Aᵀ. dw: f32 (out, in), the gradient of the merged matrix; da and db
// are f32, as a and b.
void split_low_rank(Context& ctx, const Tensor& dw, const Tensor& a, const Tensor& b, float scale, Tensor& da,
                    Tensor& db);

}  // namespace fathom
