#include "skip/skip_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "ops/rows/steer_rows.h"
#include "tensor/memory.h"

namespace fathom {
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

void ThresholdTable::make_room(Context& ctx, int32_t sequence, int64_t values) {
  if (sequence < 0 || values == 0)
    fail("a budget needs a sequence and thresholds, got {} and {}", sequence, values);
  const int64_t columns = kSteeringParts * units_;
  if (values != units_ && values != columns)
    fail("a budget has {} thresholds, or {} numbers where they are steered, got {}", units_, columns, values);
  const int64_t room = table_ ? table_.dim(0) : 0;
  if (sequence < room) return;
  const int64_t more = std::max<int64_t>(sequence + 1, 2 * room);
  table_ = with_rows(ctx, table_, more, columns);
  if (own_) own_ = with_rows(ctx, own_, more, columns);
  slots_.resize(static_cast<size_t>(table_.dim(0)));
}

void ThresholdTable::write(Context& ctx, int32_t sequence, std::span<const float> thresholds) {
  row_.assign(static_cast<size_t>(table_.dim(1)), NAN);
  std::copy(thresholds.begin(), thresholds.end(), row_.begin());
  copy_bytes(ctx, table_.rows(sequence, 1).raw(), ctx.device(), row_.data(), Device::kCpu,
             row_.size() * sizeof(float));
  if (own_ && slots_[static_cast<size_t>(sequence)].draft == Draft::kNone)
    copy_row(ctx, own_, table_, sequence);
}

void ThresholdTable::set_steered(Slot& slot, bool steered) {
  steered_ += (steered ? 1 : 0) - (slot.steered ? 1 : 0);
  slot.steered = steered;
}

void ThresholdTable::set(Context& ctx, int32_t sequence, std::span<const float> thresholds) {
  make_room(ctx, sequence, static_cast<int64_t>(thresholds.size()));
  write(ctx, sequence, thresholds);
  Slot& slot = slots_[static_cast<size_t>(sequence)];
  if (slot.draft == Draft::kNone) set_steered(slot, std::ssize(thresholds) > units_);
  budgets_ += slot.at_budget ? 0 : 1;
  slot.at_budget = true;
}

void ThresholdTable::clear(Context& ctx, int32_t sequence) {
  const auto at = static_cast<size_t>(sequence);
  if (sequence < 0 || at >= slots_.size() || !slots_[at].at_budget) return;
  write(ctx, sequence, {});
  set_steered(slots_[at], false);
  slots_[at].at_budget = false;
  --budgets_;
}

void ThresholdTable::begin_draft(Context& ctx, int32_t sequence, std::span<const float> thresholds) {
  make_room(ctx, sequence, static_cast<int64_t>(thresholds.size()));
  if (!own_) own_ = with_rows(ctx, table_, table_.dim(0), table_.dim(1));
  Slot& slot = slots_[static_cast<size_t>(sequence)];
  if (slot.draft == Draft::kNone) {
    slot.draft = slot.at_budget ? Draft::kWithOwn : Draft::kWithoutOwn;
    ++drafts_;
  }
  set(ctx, sequence, thresholds);
}

void ThresholdTable::end_draft(Context& ctx, int32_t sequence) {
  const auto at = static_cast<size_t>(sequence);
  if (sequence < 0 || at >= slots_.size() || slots_[at].draft == Draft::kNone) return;
  if (std::exchange(slots_[at].draft, Draft::kNone) == Draft::kWithOwn) {
    copy_row(ctx, table_, own_, sequence);
  } else {
    clear(ctx, sequence);
  }
  --drafts_;
}

// Sequences that were steered before are gone: nothing of them is looked back on.
void SkipState::set_thresholds(Context& ctx, int32_t sequence, std::span<const float> values) {
  const bool steered = thresholds.steered();
  thresholds.set(ctx, sequence, values);
  if (!steered && thresholds.steered()) history.forget(ctx);
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
  if (thresholds.steered()) history.fork(ctx, from, to, held);
  return held == position ? held : truncate(ctx, to, 0);
}

int64_t SkipState::settle(Context& ctx, int32_t sequence, int64_t rows) {
  return alone ? methods.at(alone)->settle(ctx, sequence, rows) : -1;
}

}  // namespace fathom
