// Philox4x32-10 (Salmon et al. 2011): random numbers as a pure function of a key and a counter, so that noise
// can be keyed by what it belongs to (seed, step, layer, sequence, position) and never by row index, thread
// or rank.
#pragma once

#include <array>
#include <cstdint>

namespace fathom {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// A stream of numbers for one purpose: Rng(seed, {step, layer, ...}).
class Rng {
 public:
  explicit Rng(uint64_t seed, std::array<uint32_t, 3> stream = {0, 0, 0});

  uint32_t next_u32();
  float uniform();                 // [0, 1), 24 bits
  double uniform_double();         // [0, 1), 53 bits
  float normal();                  // mean 0, variance 1 (Box–Muller)
  uint32_t below(uint32_t bound);  // [0, bound), unbiased

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 4> counter_;
  std::array<uint32_t, 4> block_{};
  int used_ = 4;
};

}  // namespace fathom
