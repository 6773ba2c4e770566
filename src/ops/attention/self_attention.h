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
// The result is attention()'s over a KvView of these keys; the gradient has the same bits at any number of
// threads.
Tensor self_attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_bias,
                      const RowSet& queries, const RowSet& keys, const Tensor& positions,
                      const Tensor& sequence, AttentionParams params);

}  // namespace fathom
