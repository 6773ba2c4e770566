#include "eval/prefix_slots.h"

#include <algorithm>

#include "infer/slots.h"

namespace fathom {
namespace {

// Rows that must be saved before a fork, or waiting for one, is worth it.
constexpr int64_t kWorthSharing = 8;

}  // namespace

PrefixSlots::PrefixSlots(Feeder& feeder)
    : feeder_(feeder),
      held_(static_cast<size_t>(feeder.cache().sequences())),
      coming_(held_.size()),
      busy_(held_.size()) {
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
  coming_[static_cast<size_t>(slot)].clear();
  --taken_;
}

int64_t PrefixSlots::begin(int32_t slot, std::span<const int32_t> tokens, int64_t most) {
  const auto own = static_cast<size_t>(slot);
  std::vector<int32_t>& held = held_[own];
  const auto shared = [&](std::span<const int32_t> other) {
    return std::min(most, common_prefix(other, tokens));
  };
  size_t best = own;
  int64_t longest = shared(held), later = 0;
  for (size_t other = 0; other < held_.size(); ++other) {
    if (other == own) continue;
    later = std::max(later, shared(coming_[other]));
    const int64_t has = shared(held_[other]);
    if (has < longest + (best == own ? kWorthSharing : 1)) continue;
    best = other;
    longest = has;
  }
  // Who is waited for is at work, so there is always one who does not wait.
  if (later >= longest + kWorthSharing) return -1;
  coming_[own].assign(tokens.begin(), tokens.end());
  if (best != own) {
    feeder_.truncate(slot, 0);
    feeder_.fork(static_cast<int32_t>(best), slot, longest);
    held.assign(tokens.begin(), tokens.begin() + feeder_.cache().rows(slot));
  } else if (longest < static_cast<int64_t>(held.size())) {
    held.resize(static_cast<size_t>(feeder_.truncate(slot, longest)));
  }
  return static_cast<int64_t>(held.size());
}

void PrefixSlots::fed(int32_t slot, std::span<const int32_t> tokens) {
  std::vector<int32_t>& held = held_[static_cast<size_t>(slot)];
  held.insert(held.end(), tokens.begin(), tokens.end());
}

}  // namespace fathom
