#include "model/transformer.h"

#include "model/norm.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rows.h"
#include "ops/soft_cap.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// h: (rows, width), added to in place. What a unit needs besides goes back to the arena at its end, so that a
// pass of many rows takes one unit's memory, not all layers'.
void block(Context& ctx, const Model& model, int64_t layer, Tensor& h, const Batch& batch, KvCache& cache,
           const SkipPolicy& policy, PolicyState& state) {
  const auto join = [&](const Decision& decision, const Tensor& branch) {
    if (branch) add_rows_to(ctx, h, decision.kept, policy.blend(ctx, decision, branch));
  };
  {
    const ArenaScope unit(ctx);
    const Decision a = policy.decide(ctx, {layer, Unit::kAttention, h, batch}, state);
    join(a, attend(ctx, model, layer, h, a, batch, cache));
  }
  const ArenaScope unit(ctx);
  const Decision f = policy.decide(ctx, {layer, Unit::kFfn, h, batch}, state);
  join(f, f.kept.is_none() ? Tensor() : mlp(ctx, model, layer, gather_rows(ctx, h, f.kept)));
}

}  // namespace

Tensor forward(Context& ctx, const Model& model, const Batch& batch, KvCache& cache, const SkipPolicy& policy,
               PolicyState& state) {
  const ModelConfig& config = model.config;
  Tensor h = embed(ctx, batch.tokens, model.weights.embedding, config.embedding_scale);
  if (config.embedding_norm) h = norm(ctx, config, h, model.weights.embedding_norm);
  for (int64_t layer = 0; layer < config.layers; ++layer)
    block(ctx, model, layer, h, batch, cache, policy, state);
  if (batch.logit_rows.is_none()) return {};
  h = norm(ctx, config, gather_rows(ctx, h, batch.logit_rows), model.weights.final_norm);
  const Tensor logits = linear(ctx, h, model.weights.output);
  return config.logit_soft_cap > 0 ? soft_cap(ctx, logits, config.logit_soft_cap) : logits;
}

}  // namespace fathom
