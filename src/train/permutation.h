// A shuffled order of [0, n) that is computed, not stored.
#pragma once

#include <array>
#include <cstdint>

namespace fathom {

// Position -> element, one of n! orders picked by (seed, stream): a Feistel network over the next power of
// four, walked until it falls inside [0, n). Round functions are Philox.
class Permutation {
 public:
  Permutation(int64_t n, uint64_t seed, std::array<uint32_t, 2> stream);
  int64_t operator()(int64_t position) const;

 private:
  uint64_t n_;
  int half_bits_ = 1;
  uint64_t seed_;
  std::array<uint32_t, 2> stream_;
};

}  // namespace fathom
