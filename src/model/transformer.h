// The one definition of the model.
#pragma once

#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/policy.h"

namespace fathom {

// Embedding, blocks, final norm, output. The rows' keys and values are appended to the cache
// (KvCache::reserve has been called for each sequence). -> f32 (logit rows, vocab) for the rows that want
// logits, in row order; undefined when none does.
Tensor forward(Context& ctx, const Model& model, const Batch& batch, KvCache& cache, const SkipPolicy& policy,
               PolicyState& state);

// The branches of a block, before the residual. h: f32 (rows, width) -> (kept.capacity(), width), undefined
// when no row is kept.
Tensor attend(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
              const Batch& batch, KvCache& cache);
// x: the kept rows of h -> the same shape.
Tensor mlp(Context& ctx, const Model& model, int64_t layer, const Tensor& x);

}  // namespace fathom
