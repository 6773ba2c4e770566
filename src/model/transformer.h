// The one definition of the model.
#pragma once

#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/policy.h"

namespace fathom {

// Embedding, blocks, final norm, output. The rows' keys and values are appended to the cache
// (KvCache::reserve has been called for each sequence). Returns f32 (logit rows, vocab) for the rows that
// want logits, in row order; undefined when no row does.
Tensor forward(Context& ctx, const Model& model, const Batch& batch, KvCache& cache, const SkipPolicy& policy,
               PolicyState& state);

// The same over whole sequences that see only themselves, without a cache: differentiable.
struct FreshPass {
  bool recompute = false;  // keep no branch's activations: compute them again for the gradients
};
Tensor forward(Context& ctx, const Model& model, const Batch& batch, FreshPass pass, const SkipPolicy& policy,
               PolicyState& state);

// Final norm and output matrix. h: f32 (rows, width). Returns (rows, vocab).
Tensor output_logits(Context& ctx, const Model& model, const Tensor& h);

// The normalised input of a unit, as its branch sees it. h: (rows, width)
Tensor unit_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h);

// The same for the given rows, as the decision has it already or computed now.
Tensor branch_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                    const Decision& decision, const RowSet& rows);

// Keys and values where a pass keeps them: in the cache, or in these tensors (when a block begins, those of
// the nearest layer below with the same RoPE).
struct PassKv {
  KvCache* cache = nullptr;
  Tensor k, v;  // f32 (rows, kv_heads, head_dim), compacted where skipped rows are hidden
};

// The branches of a block, before the residual. h: f32 (rows, width). Returns (rows computed, width),
// undefined when no row is computed. `kv` becomes this layer's.
Tensor attend(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
              const Batch& batch, PassKv& kv);
Tensor mlp(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision);

}  // namespace fathom
