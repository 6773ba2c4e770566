#include "ops/attention/attention.h"

#include <array>
#include <span>

#include "model/lora.h"
#include "model/norm.h"
#include "model/transformer.h"
#include "ops/attention/rope.h"
#include "ops/attention/self_attention.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/merge_rows.h"
#include "ops/rows/rms_norm.h"

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

// A unit's attention over the rows of a pass, in four steps: project, remember, mix, output.
class AttentionUnit {
 public:
  AttentionUnit(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
                const Batch& batch, const PassKv& kv)
      : ctx_(ctx),
        model_(model),
        config_(model.config),
        block_(model.weights.blocks[static_cast<size_t>(layer)]),
        layer_(layer),
        h_(h),
        decision_(decision),
        batch_(batch),
        every_row_(RowSet::all(h.dim(0))),
        all_(decision.present ? *decision.present : every_row_),
        queries_(decision.masked ? all_ : decision.kept),
        own_(decision.skipped_kv == SkippedKv::kProject ? all_ : decision.kept),
        copies_(decision.skipped_kv == SkippedKv::kCopyFromBelow && !own_.is_all()),
        same_rows_(same_set(queries_, own_)),
        input_type_(activation_type(ctx, model, block_.q)),
        type_(touched_elsewhere(kv) ? DType::kF32 : input_type_) {}

  // k and v of the rows that leave an entry; q as well where they are the rows that run.
  void project() {
    if (own_.is_none()) return;
    std::array<Tensor, 3> qkv;  // (rows, heads · head_dim), …
    constexpr std::array kAll{Projection::kQ, Projection::kK, Projection::kV};
    const size_t first = same_rows_ ? 0 : 1;
    project_group(ctx_, call(own_), input(own_), std::span(kAll).subspan(first),
                  std::span(qkv).subspan(first), type_);
    q_ = qkv[0];
    k_ = turned(qkv[1], block_.k_norm, own_);
    v_ = qkv[2].reshape({qkv[2].dim(0), config_.kv_heads, config_.head_dim});
  }

  void remember(PassKv& kv) {
    if (kv.cache) {
      kv.cache->append(ctx_, layer_, batch_, {k_, v_, own_, decision_.key_bias, copies_, decision_.present});
    } else if (copies_) {
      kv.k = k_ ? merge_rows(ctx_, kv.k, own_, k_) : kv.k;
      kv.v = v_ ? merge_rows(ctx_, kv.v, own_, v_) : kv.v;
    } else {
      kv.k = k_;
      kv.v = v_;
    }
  }

  // No row asks, or there is nothing to see.
  bool is_idle() const { return queries_.is_none() || (own_.is_none() && !copies_); }

  // -> (rows that run, heads · head_dim)
  Tensor mix(const PassKv& kv) {
    if (!same_rows_) q_ = project_one(ctx_, call(queries_), input(queries_), Projection::kQ, type_);
    const Tensor q = turned(q_, block_.q_norm, queries_);
    const AttentionParams params{
        .scale = config_.attention_scale,
        .soft_cap = config_.attention_soft_cap,
        .window = config_.windows[static_cast<size_t>(layer_)],
        .precision = block_.q.dtype() == DType::kBF16 ? Precision::kBf16 : Precision::kF32};
    if (kv.cache)
      return attention(ctx_, q, kv.cache->layer(layer_), queries_, batch_.positions, batch_.sequence, params);
    return self_attention(ctx_, q, kv.k, kv.v, decision_.key_bias, queries_, copies_ ? all_ : own_,
                          batch_.positions, batch_.sequence, params);
  }

  // Of the rows that run.
  Tensor output(const Tensor& mixed, Tensor* sum) const {
    return branch_output(ctx_, call(queries_), mixed, Projection::kO, block_.attention_post_norm, h_,
                         decision_, sum);
  }

 private:
  ProjectionCall call(const RowSet& rows) const { return {model_, layer_, batch_, rows}; }
  // The normalised input of these rows, (rows, width).
  Tensor input(const RowSet& rows) const {
    return branch_input(ctx_, model_, layer_, Unit::kAttention, h_, decision_, rows, input_type_);
  }
  // Whether queries, keys or values meet more than RoPE and self_attention, which alone take bf16.
  bool touched_elsewhere(const PassKv& kv) const {
    return kv.cache || kv.copied || config_.qk_norm != QkNorm::kNone || block_.q_bias || block_.k_bias ||
           block_.v_bias || !takes_bf16(ctx_, config_.head_dim);
  }
  // Heads, turned by their positions. x: (rows, heads · head_dim) -> (rows, heads, head_dim)
  Tensor turned(const Tensor& x, const Tensor& norm_weight, const RowSet& rows) const {
    const RopeConfig& of = config_.rope_of(layer_);
    const bool local = &of == &config_.local_rope;
    return rope_over(ctx_, split_heads(ctx_, config_, x, norm_weight),
                     gather_rows(ctx_, batch_.positions, rows),
                     local ? model_.weights.local_frequencies : model_.weights.frequencies,
                     RopeParams{config_.rope_style, rope_magnitude(of)});
  }

  Context& ctx_;
  const Model& model_;
  const ModelConfig& config_;
  const BlockWeights& block_;
  int64_t layer_;
  const Tensor& h_;
  const Decision& decision_;
  const Batch& batch_;
  RowSet every_row_;
  const RowSet& all_;      // the rows that take part
  const RowSet& queries_;  // those that run
  const RowSet& own_;      // those that leave an entry of their own
  bool copies_;            // the others leave a copy of the layer below
  bool same_rows_;         // the same ones run and leave entries
  DType input_type_;       // of the projections' input
  DType type_;             // of q, k, v
  Tensor q_, k_, v_;
};

}  // namespace

Tensor attend(Context& ctx, const Model& model, int64_t layer, const Tensor& h, const Decision& decision,
              const Batch& batch, PassKv& kv, Tensor* sum) {
  AttentionUnit unit(ctx, model, layer, h, decision, batch, kv);
  unit.project();
  unit.remember(kv);
  if (unit.is_idle()) return {};
  return unit.output(unit.mix(kv), sum);
}

}  // namespace fathom
