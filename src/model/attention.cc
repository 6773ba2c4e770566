#include "ops/attention/attention.h"

#include <array>
#include <span>

#include "model/norm.h"
#include "model/transformer.h"
#include "ops/attention/rope.h"
#include "ops/attention/self_attention.h"
#include "ops/linear/linear.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/merge_rows.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/scale_rows.h"

namespace fathom {
namespace {

// Normalised as the config says, then split into heads. x: (rows, heads · head_dim) -> (rows, heads,
// head_dim)
Tensor split_heads(Context& ctx, const ModelConfig& config, Tensor x, const Tensor& norm_weight) {
  if (config.qk_norm == QkNorm::kFullWidth) x = norm(ctx, config, x, norm_weight);
  x = x.reshape({x.dim(0), x.dim(1) / config.head_dim, config.head_dim});
  if (config.qk_norm == QkNorm::kPerHead) x = norm(ctx, config, x, norm_weight);
  return x;
}

// Known to the host to be the same rows.
bool same_set(const RowSet& a, const RowSet& b) {
  return &a == &b || (a.is_all() && b.is_all()) || (a.ids() && a.ids().raw() == b.ids().raw());
}

}  // namespace

Tensor attend(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
              const Batch& batch, PassKv& kv) {
  const ModelConfig& config = model.config;
  const BlockWeights& block = model.weights.blocks[static_cast<size_t>(layer)];
  const RopeConfig& rope_config = config.rope_of(layer);
  const bool local = &rope_config == &config.local_rope;
  const Tensor& frequencies = local ? model.weights.local_frequencies : model.weights.frequencies;
  const RopeParams rope_params{config.rope_style, rope_magnitude(rope_config)};

  // Queries come from the rows that run; keys and values from the rows that leave an entry of their own.
  const RowSet everybody = RowSet::all(h.dim(0));
  const RowSet& all = decision.present ? *decision.present : everybody;
  const RowSet& queries = decision.masked ? all : decision.kept;
  const RowSet& own = decision.skipped_kv == SkippedKv::kProject ? all : decision.kept;
  const bool copies = decision.skipped_kv == SkippedKv::kCopyFromBelow && !own.is_all();
  const bool same_rows = same_set(queries, own);
  const auto input = [&](const RowSet& rows) {  // (rows, width)
    const Tensor x = branch_input(ctx, model, layer, Unit::kAttention, h, decision, rows);
    return decision.input_gate ? scale_rows(ctx, x, gather_rows(ctx, decision.input_gate, rows)) : x;
  };
  const auto turned = [&](const Tensor& x, const Tensor& norm_weight, const RowSet& rows) {
    return rope(ctx, split_heads(ctx, config, x, norm_weight), gather_rows(ctx, batch.positions, rows),
                frequencies, rope_params);
  };

  std::array<Tensor, 3> qkv;  // (rows, heads · head_dim), …
  if (same_rows && !own.is_none()) {
    linear_group(ctx, input(own), std::array{block.q, block.k, block.v},
                 std::array{block.q_bias, block.k_bias, block.v_bias}, qkv);
  } else if (!own.is_none()) {
    linear_group(ctx, input(own), std::array{block.k, block.v}, std::array{block.k_bias, block.v_bias},
                 std::span(qkv).subspan(1));
  }
  Tensor k, v;
  if (!own.is_none()) {
    k = turned(qkv[1], block.k_norm, own);
    v = qkv[2].reshape({qkv[2].dim(0), config.kv_heads, config.head_dim});
  }
  if (kv.cache) {
    kv.cache->append(ctx, layer, batch, {k, v, own, decision.key_bias, copies, decision.present});
  } else if (copies) {
    kv.k = k ? merge_rows(ctx, kv.k, own, k) : kv.k;
    kv.v = v ? merge_rows(ctx, kv.v, own, v) : kv.v;
  } else {
    kv.k = k;
    kv.v = v;
  }
  if (queries.is_none() || (own.is_none() && !copies)) return {};  // nobody asks, or there is nothing to see

  if (!same_rows) qkv[0] = linear(ctx, input(queries), block.q, block.q_bias);
  const Tensor q = turned(qkv[0], block.q_norm, queries);
  const AttentionParams params{.scale = config.attention_scale,
                               .soft_cap = config.attention_soft_cap,
                               .window = config.windows[static_cast<size_t>(layer)]};
  Tensor mixed;  // (rows, heads · head_dim)
  if (kv.cache) {
    mixed = attention(ctx, q, kv.cache->layer(layer), queries, batch.positions, batch.sequence, params);
  } else {
    mixed = self_attention(ctx, q, kv.k, kv.v, decision.key_bias, queries, copies ? all : own,
                           batch.positions, batch.sequence, params);
  }
  return norm_after(ctx, config, linear(ctx, mixed, block.o, block.o_bias), block.attention_post_norm);
}

}  // namespace fathom
