#include "infer/slots.h"

#include <algorithm>

namespace fathom {

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

PrefixKey key_of(const Lane& lane) {
  return {lane.shared->thresholds, lane.request().salt};
}

Slots::Slots(Feeder& feeder, bool share, bool keep)
    : feeder_(feeder),
      share_(share),
      keep_(share && keep),
      slots_(static_cast<size_t>(feeder.cache().sequences())) {
  for (size_t slot = 0; slot < slots_.size(); ++slot) feeder_.truncate(static_cast<int32_t>(slot), 0);
}

Slots::~Slots() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) feeder_.truncate(static_cast<int32_t>(slot), 0);
}

bool Slots::place(Lane& lane, int64_t pass) {
  const Prefix prefix = longest_prefix(lane);
  const auto runs = [](const Slot& slot) { return slot.lane != nullptr; };
  const bool alone = std::none_of(slots_.begin(), slots_.end(), runs);
  while (!has_room(lane, prefix.tokens)) {
    if (settle() || forget_oldest(prefix.slot)) continue;
    if (!alone) return false;
    break;  // there is no lane to wait for: this one goes on as far as the pool does
  }
  int32_t slot = find_free();
  if (slot < 0 && forget_oldest(prefix.slot)) slot = find_free();
  if (slot >= 0) {
    if (prefix.tokens > 0) lane.fed = feeder_.fork(prefix.slot, slot, prefix.tokens);
  } else if (prefix.slot >= 0 && !slots_[static_cast<size_t>(prefix.slot)].lane) {
    slot = prefix.slot;  // the last place is that of the sequence it begins like
    lane.fed = feeder_.truncate(slot, prefix.tokens);
  } else {
    return false;
  }
  slots_[static_cast<size_t>(slot)] = {&lane, {}, key_of(lane), pass};
  lane.slot = slot;
  set_budget(lane);
  return true;
}

void Slots::set_budget(const Lane& lane) {
  PolicyState& state = feeder_.state();
  if (lane.shared->thresholds.empty()) {
    state.clear_thresholds(feeder_.context(), lane.slot);
  } else {
    state.set_thresholds(feeder_.context(), lane.slot, lane.shared->thresholds);
  }
}

std::span<const int32_t> Slots::tokens_in(const Slot& slot) const {
  if (!slot.lane) return slot.kept;
  return std::span(slot.lane->tokens()).first(static_cast<size_t>(slot.lane->fed));
}

// At least the last token is fed: its logits are needed. Those of the whole prompt are where it is scored.
Slots::Prefix Slots::longest_prefix(const Lane& lane) const {
  Prefix best;
  if (!share_ || lane.scores_prompt()) return best;
  const PrefixKey key = key_of(lane);
  const std::span<const int32_t> tokens = lane.tokens();
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].key != key) continue;
    const int64_t same = common_prefix(tokens.first(tokens.size() - 1), tokens_in(slots_[i]));
    if (same > best.tokens) best = {static_cast<int32_t>(i), same};
  }
  return best;
}

int32_t Slots::find_free() const {
  const auto at = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.free(); });
  return at == slots_.end() ? -1 : static_cast<int32_t>(at - slots_.begin());
}

// Of all layers, if no row skips: until the last token is fed and one more row. A shared page that is not
// full is copied.
int64_t Slots::pages_to_come(int64_t tokens, int64_t held) const {
  return feeder_.cache().pages_between(held, tokens + 1);
}

int64_t Slots::free_pages() const {
  const KvCache& cache = feeder_.cache();
  return cache.pages() - cache.bytes_held() / (KvCache::kPage * cache.bytes_per_entry());
}

// Returns whether pages came back.
bool Slots::settle() {
  const int64_t before = free_pages();
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].lane) feeder_.settle(static_cast<int32_t>(slot));
  }
  return free_pages() > before;
}

// In each layer and for each sequence at most: the pages that its rows fill, one that they begin, one copied.
void Slots::make_ready(int64_t rows) {
  const auto sequences = static_cast<int64_t>(slots_.size());
  const int64_t most = feeder_.model().config.layers * (rows / KvCache::kPage + 2 * sequences);
  if (free_pages() < most) settle();
}

bool Slots::has_room(const Lane& lane, int64_t held) const {
  int64_t free = free_pages();
  for (const Slot& slot : slots_) {
    if (slot.lane && slot.lane->unfed() > 1)
      free -= pages_to_come(static_cast<int64_t>(slot.lane->tokens().size()), slot.lane->fed);
  }
  return pages_to_come(static_cast<int64_t>(lane.tokens().size()), held) <= free;
}

void Slots::leave(Lane& lane, bool finished, int64_t pass) {
  Slot& at = slots_[static_cast<size_t>(lane.slot)];
  if (finished && keep_) {
    // Of a round that was cut short, or of tokens after a stop.
    if (feeder_.cache().rows(lane.slot) > lane.fed) lane.fed = feeder_.truncate(lane.slot, lane.fed);
    const std::span<const int32_t> tokens = tokens_in(at);
    at.kept.assign(tokens.begin(), tokens.end());
    feeder_.settle(lane.slot);
  }
  at.lane = nullptr;
  at.used = pass;
  if (at.free()) feeder_.truncate(lane.slot, 0);
  lane.slot = -1;
  lane.fed = 0;
}

bool Slots::forget_oldest(int32_t but) {
  Slot* oldest = nullptr;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.kept.empty() || static_cast<int32_t>(i) == but) continue;
    if (!oldest || slot.used < oldest->used) oldest = &slot;
  }
  if (!oldest) return false;
  oldest->kept.clear();
  feeder_.truncate(static_cast<int32_t>(oldest - slots_.data()), 0);
  return true;
}

}  // namespace fathom
