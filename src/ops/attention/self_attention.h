// Attention over the keys and values of this very pass, with gradients: what training attends with.
#pragma once

#include "ops/attention/attention.h"

namespace fathom {

// q: f32 (capacity, heads, head_dim), compacted by `queries`. k, v: f32 (capacity, kv_heads, head_dim),
// compacted by `keys`. positions, sequence: i32 (batch rows); rows of a sequence stand in order of position.
// key_bias: f32 (batch rows), added to the logits of that row's key (−inf: no query sees it), or undefined.
// A query sees the keys of the same sequence at its position or before, inside the window.
// Returns f32 (capacity of the queries, heads · head_dim). A query that sees no key gives zeros, and no
// gradient flows through it.
// On the CPU the result is attention()'s over a KvView of these keys, always in f32; the gradient has the
// same bits at any number of threads. On a GPU the same input gives the same bits on every run, and rows may
// stand in any order. There Precision::kBf16 rounds q, k, v, the softmax's weights and the gradient that
// arrives to bf16 where they are factors; head dimensions other than 64 and 128 stay with f32.
// There q, k and v may also be bf16 (takes_bf16), their rows apart; the result and the gradients are bf16
// then.
Tensor self_attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_bias,
                      const RowSet& queries, const RowSet& keys, const Tensor& positions,
                      const Tensor& sequence, AttentionParams params);

// Whether self_attention() takes rows in bf16: tensor cores compute with heads of this size.
bool takes_bf16(const Context& ctx, int64_t head_dim);

}  // namespace fathom
