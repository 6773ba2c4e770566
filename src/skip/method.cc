#include "skip/method.h"

#include <algorithm>
#include <array>

#include "ops/linear.h"
#include "ops/quantile.h"
#include "ops/rows.h"
#include "ops/scale_rows.h"
#include "ops/select_rows.h"

namespace fathom {

std::span<const std::string_view> enum_names(Units) {
  static constexpr std::array<std::string_view, 4> kNames{"attention", "mlp", "both", "block"};
  return kNames;
}

int64_t SkipState::truncate(Context& ctx, int32_t sequence, int64_t position) {
  int64_t held = position;
  for (auto& [method, state] : methods) held = std::min(held, state->truncate(ctx, sequence, position));
  if (held == position) return held;
  for (auto& [method, state] : methods) state->truncate(ctx, sequence, 0);
  return 0;
}

int64_t SkipState::fork(Context& ctx, int32_t from, int32_t to, int64_t position) {
  int64_t held = position;
  for (auto& [method, state] : methods) held = std::min(held, state->fork(ctx, from, to, position));
  return held == position ? held : truncate(ctx, to, 0);
}

int64_t SkipState::settle(Context& ctx, int32_t sequence, int64_t rows) {
  return alone ? methods.at(alone)->settle(ctx, sequence, rows) : -1;
}

Tensor Method::blend(UnitCall& call, const Decision& decision, const Tensor& branch) const {
  if (!decision.gate) return branch;
  return scale_rows(call.ctx, branch, gather_rows(call.ctx, decision.gate, computed_rows(call, decision)));
}

std::optional<RowSet> at_budget(UnitCall& call, const Tensor& score) {
  SkipState& state = call.state;
  const int64_t unit = call.input.index();
  if (state.find) {
    const Tensor threshold = quantile(call.ctx, score, 1.0f - state.find_share);
    copy_to_host(call.ctx, threshold, std::span(&(*state.find)[static_cast<size_t>(unit)], 1));
    return select_rows(call.ctx, score, Compare::kAbove, threshold);
  }
  if (state.collect) {
    std::vector<float>& scores = (*state.collect)[static_cast<size_t>(unit)];
    const size_t before = scores.size();
    scores.resize(before + static_cast<size_t>(score.numel()));
    copy_to_host(call.ctx, score, std::span(scores).subspan(before));
  }
  if (!state.thresholds) return std::nullopt;
  return select_rows(call.ctx, score, Compare::kAbove, state.thresholds.rows(unit, 1));
}

Tensor scalar_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor column = linear(ctx, x, weight, bias);
  return column.reshape({column.dim(0)});
}

Tensor scalar(Context& ctx, float value) {
  return Tensor::from(ctx, std::span<const float>(&value, 1), {1});
}

}  // namespace fathom
