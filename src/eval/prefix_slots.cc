#include "eval/prefix_slots.h"

#include <algorithm>

#include "eval/plan.h"

namespace fathom {

PrefixSlots::PrefixSlots(Feeder& feeder)
    : feeder_(feeder), held_(static_cast<size_t>(feeder.cache().sequences())), busy_(held_.size()) {
  for (size_t slot = 0; slot < held_.size(); ++slot) feeder_.truncate(static_cast<int32_t>(slot), 0);
}

int32_t PrefixSlots::take(std::span<const int32_t> tokens) {
  size_t best = held_.size();
  int64_t longest = -1;
  for (size_t slot = 0; slot < held_.size(); ++slot) {
    if (busy_[slot]) continue;
    const int64_t shared = common_prefix(held_[slot], tokens);
    if (shared <= longest) continue;
    best = slot;
    longest = shared;
  }
  busy_[best] = true;
  ++taken_;
  return static_cast<int32_t>(best);
}

void PrefixSlots::give_back(int32_t slot) {
  busy_[static_cast<size_t>(slot)] = false;
  --taken_;
}

int64_t PrefixSlots::rewind(int32_t slot, std::span<const int32_t> tokens, int64_t most) {
  std::vector<int32_t>& held = held_[static_cast<size_t>(slot)];
  const int64_t wanted = std::min(most, common_prefix(held, tokens));
  if (wanted < static_cast<int64_t>(held.size()))
    held.resize(static_cast<size_t>(feeder_.truncate(slot, wanted)));
  return static_cast<int64_t>(held.size());
}

void PrefixSlots::fed(int32_t slot, std::span<const int32_t> tokens) {
  std::vector<int32_t>& held = held_[static_cast<size_t>(slot)];
  held.insert(held.end(), tokens.begin(), tokens.end());
}

}  // namespace fathom
