#pragma once

#include "tensor/tensor.h"

namespace fathom {

// logits: f32 (rows, vocab); targets: i32 (rows) -> f32 (rows): log softmax(logits)[target], sums in f64.
Tensor token_log_probs(Context& ctx, const Tensor& logits, const Tensor& targets);

}  // namespace fathom
