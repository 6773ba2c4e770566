#include "model/transformer.h"

#include <algorithm>
#include <array>

#include "model/norm.h"
#include "ops/linear/embed.h"
#include "ops/linear/linear.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/assign.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/scale_rows.h"
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
                        PassKv& kv, Tensor* sum) {
  if (!pass.recompute) return attend(pass.ctx, pass.model, layer, h, decision, pass.batch, kv, sum);
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

Tensor ffn_branch(const Pass& pass, int64_t layer, const Tensor& h, const Decision& decision, Tensor* sum) {
  if (!pass.recompute) return mlp(pass.ctx, pass.model, layer, h, decision, pass.batch, sum);
  return recompute(pass.ctx, [&ctx = pass.ctx, &model = pass.model, batch = pass.batch, layer, h, decision] {
    return std::vector<Tensor>{mlp(ctx, model, layer, h, decision, batch)};
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
  const auto join = [&](const UnitInput& input, const Decision& decision, auto&& branch_of) {
    Tensor sum;  // of h and the branch, where one product made it
    const bool adds = policy.only_adds() && decision.kept.is_all() && !decision.masked;
    const Tensor branch = branch_of(adds ? &sum : nullptr);
    if (sum) {
      h = sum;
      return;
    }
    const PolicyWork blending(ctx.counters());
    policy.join(ctx, input, decision, branch, h, pass.state);
  };
  const ArenaScope decisions(ctx);
  const UnitInput attention{pass.model, layer, Unit::kAttention, h, pass.batch};
  const Decision a = decide(attention);
  {
    const ArenaScope unit(ctx);
    join(attention, a, [&](Tensor* sum) { return attention_branch(pass, layer, h, a, kv, sum); });
    hold(ctx, kv, room);
  }
  const UnitInput ffn{pass.model, layer, Unit::kFfn, h, pass.batch};
  const Decision f = decide(ffn);
  const ArenaScope unit(ctx);
  join(ffn, f, [&](Tensor* sum) { return ffn_branch(pass, layer, h, f, sum); });
  policy.after_block(ctx, ffn, h, pass.state);
}

// Returns the last states of the rows that want logits, (logit rows, width); undefined when no row does.
Tensor run(const Pass& pass, KvCache* cache) {
  Context& ctx = pass.ctx;
  const ModelConfig& config = pass.model.config;
  const ModelWeights& weights = pass.model.weights;
  Tensor h = embed(ctx, pass.batch.tokens, weights.embedding, config.embedding_scale);
  if (config.embedding_norm) h = norm(ctx, config, h, weights.embedding_norm);
  pass.policy.begin(ctx, pass.model, pass.batch, pass.state);
  std::array<PassKv, 2> kv, room;  // of the layers with the model's RoPE, and of those with the local one
  const bool copied = ctx.tape() && pass.policy.copies_kv(config);  // only a tape's activations may be bf16
  for (size_t kind = 0; kind < kv.size(); ++kind) {
    kv[kind].cache = cache;
    kv[kind].copied = copied;
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
  return gather_rows(ctx, h, pass.batch.logit_rows);
}

// Weights in fours are split between fours.
Tensor first_rows(const Tensor& weight, int64_t count) {
  if (weight.layout() == Layout::kFours) count = (count + 3) / 4 * 4;
  return weight.rows(0, std::min(count, weight.dim(0)));
}

Tensor logits_of(const Pass& pass, KvCache* cache) {
  const Tensor h = run(pass, cache);
  if (!h) return {};
  OutputRows rows = output_rows(pass.ctx, pass.model, h);
  if (pass.batch.vocab > 0) rows.weight = first_rows(rows.weight, pass.batch.vocab);
  return output_logits(pass.ctx, rows);
}

}  // namespace

OutputRows output_rows(Context& ctx, const Model& model, const Tensor& h) {
  const DType type = activation_type(ctx, model, model.weights.output);
  return {norm(ctx, model.config, h, model.weights.final_norm, type), model.weights.output,
          model.config.logit_soft_cap};
}

Tensor output_logits(Context& ctx, const Model& model, const Tensor& h) {
  return output_logits(ctx, output_rows(ctx, model, h));
}

DType activation_type(const Context& ctx, const Model& model, const Tensor& weight) {
  const bool bf16 =
      ctx.device() == Device::kCuda && ctx.tape() && weight.dtype() == DType::kBF16 && !model.lora.beside();
  return bf16 && weight.dim(1) % 8 == 0 && weight.dim(1) <= kWidestBf16Norm ? DType::kBF16 : DType::kF32;
}

DType activation_type(const Context& ctx, const Model& model, int64_t layer, Unit unit) {
  const BlockWeights& weights = model.weights.blocks[static_cast<size_t>(layer)];
  return activation_type(ctx, model, unit == Unit::kAttention ? weights.q : weights.gate);
}

Tensor unit_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                  const RowSet& kept, DType type) {
  const BlockWeights& weights = model.weights.blocks[static_cast<size_t>(layer)];
  return norm_before(ctx, model.config, h, kept,
                     unit == Unit::kAttention ? weights.attention_norm : weights.ffn_norm, type);
}

Tensor unit_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h, DType type) {
  return unit_input(ctx, model, layer, unit, h, RowSet::all(h.dim(0)), type);
}

Tensor branch_input(Context& ctx, const Model& model, int64_t layer, Unit unit, const Tensor& h,
                    const Decision& decision, const RowSet& rows, DType type) {
  if (decision.input_gate) type = DType::kF32;
  const bool given = decision.input && (!ctx.tape() || (rows.is_all() && decision.input.dtype() == type));
  const Tensor x =
      given ? gather_rows(ctx, decision.input, rows) : unit_input(ctx, model, layer, unit, h, rows, type);
  if (!decision.input_gate) return x;
  return scale_rows(ctx, x, gather_rows(ctx, decision.input_gate, rows));
}

Tensor branch_output(Context& ctx, const ProjectionCall& call, const Tensor& x, Projection which,
                     const Tensor& post_norm, const Tensor& h, const Decision& decision, Tensor* sum) {
  const ModelConfig& config = call.model.config;
  const BlockWeights& block = call.model.weights.blocks[static_cast<size_t>(call.layer)];
  const bool plain =
      config.norm_placement == NormPlacement::kBefore && !bias_of(block, which) && x.dtype() == DType::kBF16;
  if (!sum || !plain) {
    const DType type = plain && decision.joins_as_it_is ? DType::kBF16 : DType::kF32;
    return norm_after(ctx, config, project_one(ctx, call, x, which, type), post_norm);
  }
  *sum = add_linear(ctx, h, x, weight_of(block, which));
  return {};
}

Tensor forward(Context& ctx, const Model& model, const Batch& batch, KvCache& cache, const SkipPolicy& policy,
               PolicyState& state) {
  cache.send_changes(ctx);
  return logits_of({ctx, model, batch, policy, state}, &cache);
}

Tensor forward(Context& ctx, const Model& model, const Batch& batch, FreshPass pass, const SkipPolicy& policy,
               PolicyState& state) {
  return logits_of({ctx, model, batch, policy, state, pass.recompute}, nullptr);
}

OutputRows forward_to_output(Context& ctx, const Model& model, const Batch& batch, FreshPass pass,
                             const SkipPolicy& policy, PolicyState& state) {
  const Tensor h = run({ctx, model, batch, policy, state, pass.recompute}, nullptr);
  return h ? output_rows(ctx, model, h) : OutputRows();
}

}  // namespace fathom
