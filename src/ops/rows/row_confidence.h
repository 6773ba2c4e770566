// How sure a row is of itself, for exits. A row's bits depend on that row alone. No gradients.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// logits: f32 (rows, vocab) -> (rows): the largest probability of their softmax less the second largest; 1
// where there is only one token.
Tensor softmax_gap(Context& ctx, const Tensor& logits);

// a, b: f32 (rows, d) -> (rows): a·b / (|a| |b|); 0 where either is zero.
Tensor cosine_rows(Context& ctx, const Tensor& a, const Tensor& b);

}  // namespace fathom
