// What steering remembers of a block of rows, for both devices.
#pragma once

#include <cstdint>

#include "base/both_devices.h"
#include "ops/rows/steer_rows.h"

namespace fathom {

struct SteeredBlock {
  uint32_t ran, seen;  // bit r: row r of the block ran; was decided by a steered threshold
  float excess;  // of the blocks before: the start and the rows that ran, less the wanted share of those seen
};
static_assert(sizeof(SteeredBlock) == kSteeringWords * sizeof(int32_t));

struct SteeringRule {
  float threshold, share, up, down, start;
};

// An excess is forgotten beyond this: where a share is out of reach, the way back is not long.
inline constexpr float kMostExcess = 2.0f * static_cast<float>(kSteeredRows);

// The excess that a block begins with, after `before`.
FATHOM_BOTH inline float excess_after(const SteeredBlock& before, float share, int ran, int seen) {
  const float sum = before.excess + (static_cast<float>(ran) - share * static_cast<float>(seen));
  return sum > kMostExcess ? kMostExcess : sum < -kMostExcess ? -kMostExcess : sum;
}

FATHOM_BOTH inline float steered(const SteeringRule& rule, float excess) {
  if (excess == 0) return rule.threshold;
  const float part = excess / static_cast<float>(kSteeredRows);
  return rule.threshold + (part > 0 ? rule.up : rule.down) * part;
}

}  // namespace fathom
