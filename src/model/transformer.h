// The one definition of the model.
#pragma once

#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/lora.h"
#include "model/model.h"
#include "model/policy.h"
#include "ops/loss/output_loss.h"

namespace fathom {

// Embedding, blocks, final norm, output. The rows' keys and values are appended to the cache
// (KvCache::reserve has been called for each sequence). Returns f32 (logit rows, vocab) for the rows that
// want logits, in row order; undefined when no row does. Where the batch wants a part of the vocabulary, of
// the output matrix that part is read, or up to three rows more.
Tensor forward(Context& ctx, const Model& model, const Batch& batch, KvCache& cache, const SkipPolicy& policy,
               PolicyState& state);

// The same over whole sequences that see only themselves, without a cache: differentiable.
struct FreshPass {
  bool recompute = false;  // keep no branch's activations: compute them again for the gradients
};
Tensor forward(Context& ctx, const Model& model, const Batch& batch, FreshPass pass, const SkipPolicy& policy,
               PolicyState& state);

// The same up to the output matrix: what losses take, which need no logits. x is undefined when no row wants
// any.
OutputRows forward_to_output(Context& ctx, const Model& model, const Batch& batch, FreshPass pass,
                             const SkipPolicy& policy, PolicyState& state);

// Final norm, and the matrix to come. h: f32 (rows, width)
OutputRows output_rows(Context& ctx, const Model& model, const Tensor& h);
// Final norm and output matrix. Returns (rows, vocab).
Tensor output_logits(Context& ctx, const Model& model, const Tensor& h);

// The type of activations between this weight's product and its neighbours: bf16 while a tape is attached on
// a GPU and the weight is bf16, without factors beside it; otherwise f32. The residual stream is f32 always.
DType activation_type(const Context& ctx, const Model& model, const Tensor& weight);
// Of a unit's input.
DType activation_type(const Context& ctx, const Model& model, int64_t layer, Unit unit);

// The normalised input of a unit, as its branch sees it, in `type`: of the kept rows, or of all. h: (rows,
// width)
Tensor unit_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                  const RowSet& kept, DType type = DType::kF32);
Tensor unit_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                  DType type = DType::kF32);

// The same for the given rows, as the decision has it already or computed now, times the decision's input
// gate where it has one (then f32).
Tensor branch_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                    const Decision& decision, const RowSet& rows, DType type = DType::kF32);

// The branch of its last product's input x, (rows computed, width), normalised as the config says; in bf16
// where x is and the branch joins as it is. h, sum: as mlp() takes them.
Tensor branch_output(Context& ctx, const ProjectionCall& call, const Tensor& x, Projection which,
                     const Tensor& post_norm, const Tensor& h, const Decision& decision, Tensor* sum);

// Keys and values where a pass keeps them: in the cache, or in these tensors (when a block begins, those of
// the nearest layer below with the same RoPE).
struct PassKv {
  KvCache* cache = nullptr;
  Tensor k, v;  // (rows, kv_heads, head_dim), compacted where skipped rows are hidden; bf16 on a GPU's tape
  bool copied = false;  // a layer above may copy them: then they are f32
};

// The branches of a block, before the residual. h: f32 (rows, width). Returns (rows computed, width),
// undefined when no row is computed. `kv` becomes this layer's. sum: not null where every row runs and the
// branch may be added to h at once; where one product can do that, the sum goes there, and nothing is
// returned.
Tensor attend(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
              const Batch& batch, PassKv& kv, Tensor* sum = nullptr);
Tensor mlp(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
           const Batch& batch, Tensor* sum = nullptr);

}  // namespace fathom
