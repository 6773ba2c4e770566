#include "ops/attention.h"

#include <array>
#include <span>

#include "model/norm.h"
#include "model/transformer.h"
#include "ops/append_kv.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/rows.h"

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

}  // namespace

Tensor attend(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
              const Batch& batch, KvCache& cache) {
  const ModelConfig& config = model.config;
  const BlockWeights& block = model.weights.blocks[static_cast<size_t>(layer)];
  const RopeConfig& rope_config = config.rope_of(layer);
  const bool local = &rope_config == &config.local_rope;
  const Tensor& frequencies = local ? model.weights.local_frequencies : model.weights.frequencies;
  const RopeParams rope_params{config.rope_style, rope_magnitude(rope_config)};

  // Queries come from the kept rows; keys and values from the rows that leave an entry.
  const RowSet& queries = decision.kept;
  const RowSet keys = decision.skipped_kv == SkippedKv::kProject ? RowSet::all(h.dim(0)) : queries;
  if (keys.is_none()) return {};
  const bool same_rows = queries.is_all() == keys.is_all() && !queries.is_none();
  const Tensor x_kv = norm_before(ctx, config, gather_rows(ctx, h, keys), block.attention_norm);
  std::array<Tensor, 3> qkv;  // (rows, heads · head_dim), …
  if (same_rows) {
    linear_group(ctx, x_kv, std::array{block.q, block.k, block.v},
                 std::array{block.q_bias, block.k_bias, block.v_bias}, qkv);
  } else {
    linear_group(ctx, x_kv, std::array{block.k, block.v}, std::array{block.k_bias, block.v_bias},
                 std::span(qkv).subspan(1));
  }
  const Tensor key_positions = gather_rows(ctx, batch.positions, keys);
  const Tensor k =
      rope(ctx, split_heads(ctx, config, qkv[1], block.k_norm), key_positions, frequencies, rope_params);
  const Tensor v = qkv[2].reshape({qkv[2].dim(0), config.kv_heads, config.head_dim});
  KvView& kv = cache.layer(layer);
  append_kv(ctx, kv, cache.page_table(layer), KvCache::kPage, k, v, keys, batch.positions, batch.sequence);
  if (queries.is_none()) return {};

  if (!same_rows) {
    const Tensor x = norm_before(ctx, config, gather_rows(ctx, h, queries), block.attention_norm);
    qkv[0] = linear(ctx, x, block.q, block.q_bias);
  }
  const Tensor query_positions = same_rows ? key_positions : gather_rows(ctx, batch.positions, queries);
  const Tensor q =
      rope(ctx, split_heads(ctx, config, qkv[0], block.q_norm), query_positions, frequencies, rope_params);
  const AttentionParams params{.scale = config.attention_scale,
                               .soft_cap = config.attention_soft_cap,
                               .window = config.windows[static_cast<size_t>(layer)]};
  const Tensor mixed = attention(ctx, q, kv, queries, batch.positions, batch.sequence, params);
  return norm_after(ctx, config, linear(ctx, mixed, block.o, block.o_bias), block.attention_post_norm);
}

}  // namespace fathom
