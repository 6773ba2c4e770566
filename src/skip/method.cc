#include "skip/method.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/linear/linear.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/scale_rows.h"
#include "ops/rows/select_rows.h"
#include "ops/rows/steer_rows.h"
#include "skip/harm_order.h"

namespace fathom {

std::span<const std::string_view> enum_names(Units) {
  static constexpr std::array<std::string_view, 4> kNames{"attention", "mlp", "both", "block"};
  return kNames;
}

Tensor Method::blend(UnitCall& call, const Decision& decision, const Tensor& branch) const {
  if (!decision.gate) return branch;
  return scale_rows(call.ctx, branch, gather_rows(call.ctx, decision.gate, computed_rows(call, decision)));
}

std::vector<float> UnitList::thresholds(double budget, int64_t units) const {
  return without(units_gone(left, budget), units);
}

std::vector<float> UnitList::without(size_t dropped, int64_t units) const {
  constexpr float kMost = std::numeric_limits<float>::max();  // rows that never skip score infinity
  std::vector<float> out(static_cast<size_t>(units), -INFINITY);
  for (const int32_t unit : std::span(order).first(dropped)) out[static_cast<size_t>(unit)] = kMost;
  return out;
}

RowSet above_threshold(UnitCall& call, const Tensor& score, float own, float least) {
  SkipState& state = call.state;
  const int64_t unit = call.input.index();
  if (state.pass.collect && score) {
    std::vector<float>& scores = (*state.pass.collect)[static_cast<size_t>(unit)];
    const size_t before = scores.size();
    scores.resize(before + static_cast<size_t>(score.numel()));
    copy_to_host(call.ctx, score, std::span(scores).subspan(before));
  }
  if (state.pass.fit && score) {
    ThresholdFit& fit = *state.pass.fit;
    std::vector<float> scores(static_cast<size_t>(score.numel()));
    copy_to_host(call.ctx, score, scores);
    std::vector<BatchRow> room;
    fit.find(unit, scores, rows_on_host(call.ctx, call.input.batch, room), least);
    if (!fit.steers) {
      const float threshold = fit.thresholds[static_cast<size_t>(unit)];
      return select_rows(call.ctx, score, Compare::kAbove, scalar(call.ctx, std::max(threshold, least)));
    }
    const std::vector<float> settings = fit.settings();  // of this unit now, too
    for (int32_t s = 0; s < call.input.batch.sequences; ++s) state.thresholds.set(call.ctx, s, settings);
  }
  if (state.thresholds.steered() && !state.training) {
    const ThresholdTable& of = state.thresholds;
    const Batch& batch = call.input.batch;
    const Steering steering{of.table(), unit,  batch.sequence,     batch.positions,
                            own,        least, call.input.present, !of.drafts() || of.judging};
    return select_rows(call.ctx, score, Compare::kAbove,
                       steered_thresholds(call.ctx, score, steering, state.history.blocks()));
  }
  if (state.thresholds.any() && !state.training)  // training follows the method's rule
    return select_rows(call.ctx, score,
                       {state.thresholds.table(), unit, call.input.batch.sequence, own, least});
  if (own == -INFINITY) return RowSet::all(call.rows());
  return select_rows(call.ctx, score, Compare::kAbove, scalar(call.ctx, own));
}

Tensor scalar_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor column = linear(ctx, x, weight, bias);
  return column.reshape({column.dim(0)});
}

}  // namespace fathom
