// Losses of a model's output that keep no logits: on a GPU rows go through a piece at a time, and a piece's
// logits become its part of the gradient at once. Elsewhere they are linear(), soft_cap() and the losses of
// ops/loss/cross_entropy.h, bit for bit.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// The last states of some rows, and the matrix that makes logits of them.
struct OutputRows {
  Tensor x;            // (rows, width): f32; on a GPU bf16 too, unless the weight is f32
  Tensor weight;       // (vocab, width), as linear() takes it
  float soft_cap = 0;  // of the logits; 0: none
};

// f32 (rows, vocab)
Tensor output_logits(Context& ctx, const OutputRows& rows);

// About how many logits are in memory at once; at least those of 128 rows are.
inline constexpr int64_t kLogitsAtOnce = int64_t{1} << 27;

// As cross_entropy() of the logits. On a GPU f32 weights multiply in f32; others, with or without a tape, in
// bf16, logits included (sums f32), and the gradient's products are done and counted with the forward's.
Tensor output_cross_entropy(Context& ctx, const OutputRows& rows, const Tensor& targets,
                            const Tensor& weights, int64_t logits_at_once = kLogitsAtOnce);

// As kl_divergence() of the logits: the gradient goes to the student only. The widths may differ.
Tensor output_kl(Context& ctx, const OutputRows& teacher, const OutputRows& student, const Tensor& weights,
                 int64_t logits_at_once = kLogitsAtOnce);

}  // namespace fathom
