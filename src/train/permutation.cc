#include "train/permutation.h"

#include <cassert>

#include "base/rng.h"

namespace fathom {

Permutation::Permutation(int64_t n, uint64_t seed, std::array<uint32_t, 2> stream)
    : n_(static_cast<uint64_t>(n)), seed_(seed), stream_(stream) {
  assert(n > 0 && n < int64_t{1} << 60);
  while (uint64_t{1} << 2 * half_bits_ < n_) ++half_bits_;
}

int64_t Permutation::operator()(int64_t position) const {
  static constexpr uint32_t kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)};
  auto value = static_cast<uint64_t>(position);
  assert(value < n_);
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto noise = philox({static_cast<uint32_t>(right), round, stream_[0], stream_[1]}, key);
      const uint64_t mixed = left ^ (noise[0] & mask);
      left = right, right = mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return static_cast<int64_t>(value);
}

}  // namespace fathom
