// Losses over rows, each a weighted sum (the caller's weights say what it is a mean of).
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// logits: f32 (rows, vocab); targets: i32 (rows); weights: f32 (rows) -> (1): Σ w (logsumexp(l) − l[target]),
// rows added in f64 in a fixed order. A row of weight 0 is not read, nor its target. No gradient to the
// weights.
Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& weights);

// teacher, student: f32 (rows, vocab) -> (1): Σ w KL(softmax teacher ‖ softmax student). The gradient goes to
// the student only.
Tensor kl_divergence(Context& ctx, const Tensor& teacher, const Tensor& student, const Tensor& weights);

// f32 (rows): KL(softmax teacher ‖ softmax student) of each row. No gradients.
Tensor kl_of_rows(Context& ctx, const Tensor& teacher, const Tensor& student);

// a, b: f32 (rows, d) -> (1): Σ w · mean over d of (a − b)².
Tensor mean_squared(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& weights);

}  // namespace fathom
