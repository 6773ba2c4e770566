#include "skip/method.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "ops/linear/linear.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/scale_rows.h"
#include "ops/rows/select_rows.h"
#include "tensor/memory.h"

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

namespace {

// f32 (sequences, columns): the old rows, and NaN in those that are new.
Tensor with_rows(Context& ctx, const Tensor& old, int64_t sequences, int64_t columns) {
  const std::vector<float> none(static_cast<size_t>(sequences * columns), NAN);
  Tensor table = Tensor::owned(ctx.device(), DType::kF32, {sequences, columns});
  copy_bytes(ctx, table.raw(), ctx.device(), none.data(), Device::kCpu, none.size() * sizeof(float));
  if (old)
    copy_bytes(ctx, table.raw(), ctx.device(), old.raw(), ctx.device(), static_cast<size_t>(old.nbytes()));
  return table;
}

void copy_row(Context& ctx, Tensor& to, const Tensor& from, int64_t row) {
  copy_bytes(ctx, to.rows(row, 1).raw(), ctx.device(), from.rows(row, 1).raw(), ctx.device(),
             static_cast<size_t>(from.rows(row, 1).nbytes()));
}

}  // namespace

void SkipState::make_room(Context& ctx, int32_t sequence, int64_t columns) {
  if (sequence < 0 || columns == 0)
    fail("a budget needs a sequence and thresholds, got {} and {}", sequence, columns);
  if (thresholds_ && thresholds_.dim(1) != columns)
    fail("a budget has {} thresholds, got {}", thresholds_.dim(1), columns);
  const int64_t room = thresholds_ ? thresholds_.dim(0) : 0;
  if (sequence < room) return;
  const int64_t more = std::max<int64_t>(sequence + 1, 2 * room);
  thresholds_ = with_rows(ctx, thresholds_, more, columns);
  if (own_) own_ = with_rows(ctx, own_, more, columns);
  slots_.resize(static_cast<size_t>(thresholds_.dim(0)));
}

void SkipState::write(Context& ctx, int32_t sequence, std::span<const float> thresholds) {
  copy_bytes(ctx, thresholds_.rows(sequence, 1).raw(), ctx.device(), thresholds.data(), Device::kCpu,
             thresholds.size_bytes());
  if (own_ && slots_[static_cast<size_t>(sequence)].draft == Draft::kNone)
    copy_row(ctx, own_, thresholds_, sequence);
}

void SkipState::set_thresholds(Context& ctx, int32_t sequence, std::span<const float> thresholds) {
  make_room(ctx, sequence, static_cast<int64_t>(thresholds.size()));
  write(ctx, sequence, thresholds);
  Slot& slot = slots_[static_cast<size_t>(sequence)];
  budgets_ += slot.at_budget ? 0 : 1;
  slot.at_budget = true;
}

void SkipState::clear_thresholds(Context& ctx, int32_t sequence) {
  const auto at = static_cast<size_t>(sequence);
  if (sequence < 0 || at >= slots_.size() || !slots_[at].at_budget) return;
  write(ctx, sequence, std::vector<float>(static_cast<size_t>(thresholds_.dim(1)), NAN));
  slots_[at].at_budget = false;
  --budgets_;
}

void SkipState::begin_draft(Context& ctx, int32_t sequence, std::span<const float> thresholds) {
  make_room(ctx, sequence, static_cast<int64_t>(thresholds.size()));
  if (!own_) own_ = with_rows(ctx, thresholds_, thresholds_.dim(0), thresholds_.dim(1));
  Slot& slot = slots_[static_cast<size_t>(sequence)];
  if (slot.draft == Draft::kNone) {
    slot.draft = slot.at_budget ? Draft::kWithOwn : Draft::kWithoutOwn;
    ++drafts_;
  }
  set_thresholds(ctx, sequence, thresholds);
}

void SkipState::end_draft(Context& ctx, int32_t sequence) {
  const auto at = static_cast<size_t>(sequence);
  if (sequence < 0 || at >= slots_.size() || slots_[at].draft == Draft::kNone) return;
  if (std::exchange(slots_[at].draft, Draft::kNone) == Draft::kWithOwn) {
    copy_row(ctx, thresholds_, own_, sequence);
  } else {
    clear_thresholds(ctx, sequence);
  }
  --drafts_;
}

namespace {

// The threshold at or below which about `share` of the scores lie. Among equal ones: the nearer of all and
// none.
float quantile_of(std::vector<float> scores, float share) {
  std::erase_if(scores, [](float score) { return !std::isfinite(score); });
  if (scores.empty()) return -INFINITY;
  std::sort(scores.begin(), scores.end());
  const auto wanted =
      static_cast<ptrdiff_t>(std::lround(std::clamp(share, 0.0f, 1.0f) * static_cast<float>(scores.size())));
  if (wanted == 0) return std::nextafter(scores.front(), -INFINITY);
  const float value = scores[static_cast<size_t>(wanted - 1)];
  const auto [first, last] = std::equal_range(scores.begin(), scores.end(), value);
  const bool without = last - scores.begin() - wanted > wanted - (first - scores.begin());
  return without ? std::nextafter(value, -INFINITY) : value;
}

}  // namespace

RowSet above_threshold(UnitCall& call, const Tensor& score, float own, float least) {
  SkipState& state = call.state;
  const int64_t unit = call.input.index();
  if (state.collect && score) {
    std::vector<float>& scores = (*state.collect)[static_cast<size_t>(unit)];
    const size_t before = scores.size();
    scores.resize(before + static_cast<size_t>(score.numel()));
    copy_to_host(call.ctx, score, std::span(scores).subspan(before));
  }
  if (state.fit && score) {
    std::vector<float> scores(static_cast<size_t>(score.numel()));
    copy_to_host(call.ctx, score, scores);
    float& threshold = state.fit->thresholds[static_cast<size_t>(unit)];
    threshold = quantile_of(std::move(scores), state.fit->share);
    return select_rows(call.ctx, score, Compare::kAbove, scalar(call.ctx, std::max(threshold, least)));
  }
  if (state.has_thresholds() && !state.training)  // training follows the method's rule
    return select_rows(call.ctx, score, {state.thresholds(), unit, call.input.batch.sequence, own, least});
  if (own == -INFINITY) return RowSet::all(call.rows());
  return select_rows(call.ctx, score, Compare::kAbove, scalar(call.ctx, own));
}

Tensor scalar_head(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Tensor column = linear(ctx, x, weight, bias);
  return column.reshape({column.dim(0)});
}

Tensor scalar(Context& ctx, float value) {
  return Tensor::from(ctx, std::span<const float>(&value, 1), {1});
}

}  // namespace fathom
