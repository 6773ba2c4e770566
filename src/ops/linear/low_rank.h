// LoRA inside the weights: a low-rank product added to a matrix, and its gradient given back to the factors.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// What a merged matrix is rounded to besides its own type: kQ4_1, the values that q4_1 would hold.
enum class MergeRounding : uint8_t { kNone, kQ4_1 };

// out = w + scale · B A, rounded once to the type of out, or to `rounding` first. w, out: f32 or bf16, both
// alike (out, in). a: f32 (rank, in), b: f32 (out, rank). kQ4_1 needs rows of whole blocks of 32.
void merge_low_rank(Context& ctx, const Tensor& w, const Tensor& a, const Tensor& b, float scale,
                    MergeRounding rounding, Tensor& out);

// da += scale · Bᵀ dw, db += scale · dw Aᵀ. dw: f32 (out, in), the gradient of the merged matrix; da and db
// are f32, as a and b.
void split_low_rank(Context& ctx, const Tensor& dw, const Tensor& a, const Tensor& b, float scale, Tensor& da,
                    Tensor& db);

}  // namespace fathom
