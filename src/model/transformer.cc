#include "model/transformer.h"

#include <array>

#include "model/norm.h"
#include "ops/linear/embed.h"
#include "ops/linear/linear.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/assign.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/soft_cap.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

struct Pass {
  Context& ctx;
  const Model& model;
  const Batch& batch;
  const SkipPolicy& policy;
  PolicyState& state;
  bool recompute = false;
};

// The branches, their activations kept for the gradients or computed again. What a branch needs besides its
// result goes back to the arena with the unit's scope, so that many rows take one unit's memory, not all
// layers'.
Tensor attention_branch(const Pass& pass, int64_t layer, const Tensor& h, const Decision& decision,
                        PassKv& kv) {
  if (!pass.recompute) return attend(pass.ctx, pass.model, layer, h, decision, pass.batch, kv);
  std::vector<Tensor> made =
      recompute(pass.ctx, [&ctx = pass.ctx, &model = pass.model, batch = pass.batch, layer, h, decision, kv] {
        PassKv own = kv;
        const Tensor branch = attend(ctx, model, layer, h, decision, batch, own);
        return std::vector<Tensor>{branch, own.k, own.v};
      });
  kv.k = made[1];
  kv.v = made[2];
  return made[0];
}

Tensor ffn_branch(const Pass& pass, int64_t layer, const Tensor& h, const Decision& decision) {
  if (!pass.recompute) return mlp(pass.ctx, pass.model, layer, h, decision);
  return recompute(pass.ctx, [&ctx = pass.ctx, &model = pass.model, layer, h, decision] {
    return std::vector<Tensor>{mlp(ctx, model, layer, h, decision)};
  })[0];
}

// A fresh pass's keys and values outlive their unit: the layer above may copy them. (Compacted ones it may
// not.)
void hold(Context& ctx, PassKv& kv, PassKv& room) {
  if (!room.k || !kv.k || kv.k.row_count()) return;
  assign(ctx, room.k, kv.k);
  assign(ctx, room.v, kv.v);
  kv.k = room.k;
  kv.v = room.v;
}

// The policy decides which rows run; the branch runs on the kept rows; the result joins the residual. h:
// (rows, width), added to in place.
void block(const Pass& pass, int64_t layer, Tensor& h, PassKv& kv, PassKv& room) {
  Context& ctx = pass.ctx;
  const SkipPolicy& policy = pass.policy;
  const auto decide = [&](const UnitInput& input) {
    const PolicyWork deciding(ctx.counters());
    return policy.decide(ctx, input, pass.state);
  };
  const auto join = [&](const UnitInput& input, const Decision& decision, const Tensor& branch) {
    const PolicyWork blending(ctx.counters());
    policy.join(ctx, input, decision, branch, h, pass.state);
  };
  const ArenaScope decisions(ctx);
  const UnitInput attention{pass.model, layer, Unit::kAttention, h, pass.batch};
  const Decision a = decide(attention);
  {
    const ArenaScope unit(ctx);
    join(attention, a, attention_branch(pass, layer, h, a, kv));
    hold(ctx, kv, room);
  }
  const UnitInput ffn{pass.model, layer, Unit::kFfn, h, pass.batch};
  const Decision f = decide(ffn);
  const ArenaScope unit(ctx);
  join(ffn, f, ffn_branch(pass, layer, h, f));
  policy.after_block(ctx, ffn, h, pass.state);
}

Tensor run(const Pass& pass, KvCache* cache) {
  Context& ctx = pass.ctx;
  const ModelConfig& config = pass.model.config;
  const ModelWeights& weights = pass.model.weights;
  Tensor h = embed(ctx, pass.batch.tokens, weights.embedding, config.embedding_scale);
  if (config.embedding_norm) h = norm(ctx, config, h, weights.embedding_norm);
  pass.policy.begin(ctx, pass.model, pass.batch, pass.state);
  std::array<PassKv, 2> kv, room;  // of the layers with the model's RoPE, and of those with the local one
  for (size_t kind = 0; kind < kv.size(); ++kind) {
    kv[kind].cache = cache;
    if (cache || ctx.tape() || (kind == 1 && !config.has_local_rope)) continue;
    const Shape shape{pass.batch.rows(), config.kv_heads, config.head_dim};
    room[kind].k = Tensor::empty(ctx, DType::kF32, shape);
    room[kind].v = Tensor::empty(ctx, DType::kF32, shape);
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const size_t kind = config.is_local(layer) ? 1 : 0;
    block(pass, layer, h, kv[kind], room[kind]);
  }
  if (pass.batch.logit_rows.is_none()) return {};
  return output_logits(ctx, pass.model, gather_rows(ctx, h, pass.batch.logit_rows));
}

}  // namespace

Tensor output_logits(Context& ctx, const Model& model, const Tensor& h) {
  const ModelConfig& config = model.config;
  const Tensor logits = linear(ctx, norm(ctx, config, h, model.weights.final_norm), model.weights.output);
  return config.logit_soft_cap > 0 ? soft_cap(ctx, logits, config.logit_soft_cap) : logits;
}

Tensor unit_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h) {
  const BlockWeights& weights = model.weights.blocks[static_cast<size_t>(layer)];
  return norm_before(ctx, model.config, h,
                     unit == Unit::kAttention ? weights.attention_norm : weights.ffn_norm);
}

Tensor branch_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                    const Decision& decision, const RowSet& rows) {
  if (decision.input) return gather_rows(ctx, decision.input, rows);
  return unit_input(ctx, model, layer, unit, gather_rows(ctx, h, rows));
}

Tensor forward(Context& ctx, const Model& model, const Batch& batch, KvCache& cache, const SkipPolicy& policy,
               PolicyState& state) {
  return run({ctx, model, batch, policy, state}, &cache);
}

Tensor forward(Context& ctx, const Model& model, const Batch& batch, FreshPass pass, const SkipPolicy& policy,
               PolicyState& state) {
  return run({ctx, model, batch, policy, state, pass.recompute}, nullptr);
}

}  // namespace fathom
