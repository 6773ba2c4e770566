// Softmax attention of query rows over the entries of the same sequence.
#pragma once

#include "ops/attention/kv_view.h"
#include "tensor/precision.h"
#include "tensor/rows.h"

namespace fathom {

struct AttentionParams {
  float scale = 1.0f;     // of q·k
  float soft_cap = 0.0f;  // > 0: cap · tanh(logit / cap)
  int32_t window = 0;     // > 0: a key is visible when query position − key position < window
  Precision precision = Precision::kF32;  // of self_attention() on a GPU; all else computes in f32
};

// q: f32 (capacity, heads, head_dim), its rows compacted by `queries`. positions, sequence: i32 (batch rows),
// indexed by the rows' own ids (queries.ids()). A key is visible when its position ≤ the query's and inside
// the window.
// -> f32 (capacity, heads · head_dim). A query that sees nothing gives zeros.
// Products are sums of f32; over f16 keys the query is rounded to f16 first, over f16 values the softmax's
// weights are. Keys are taken in blocks of kKeyBlock entries at fixed multiples of the entry index, and the
// blocks' partial results are merged in order: the same bits for one query or many, for one thread or more.
inline constexpr int64_t kKeyBlock = 64;
inline constexpr int64_t kMaxHeadDim = 256;
Tensor attention(Context& ctx, const Tensor& q, const KvView& kv, const RowSet& queries,
                 const Tensor& positions, const Tensor& sequence, AttentionParams params);

}  // namespace fathom
