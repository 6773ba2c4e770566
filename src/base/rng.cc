#include "base/rng.h"

#include <cmath>

namespace fathom {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

Rng::Rng(uint64_t seed, std::array<uint32_t, 3> stream)
    : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
      counter_{0, stream[0], stream[1], stream[2]} {}

uint32_t Rng::next_u32() {
  if (used_ == 4) {
    block_ = philox(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }
  return block_[static_cast<size_t>(used_++)];
}

float Rng::uniform() {
  return static_cast<float>(next_u32() >> 8) * 0x1p-24f;
}

double Rng::uniform_double() {
  const uint64_t high = next_u32() >> 5, low = next_u32() >> 6;
  return static_cast<double>(high << 26 | low) * 0x1p-53;
}

float Rng::normal() {
  const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform()));
  return radius * std::cos(6.28318530717958647692f * uniform());
}

uint32_t Rng::below(uint32_t bound) {
  const uint32_t reject =
      -bound % bound;  // 2^32 mod bound: the numbers below it would be drawn once too often
  while (true) {
    const uint64_t product = uint64_t{next_u32()} * bound;
    if (static_cast<uint32_t>(product) >= reject) return static_cast<uint32_t>(product >> 32);
  }
}

}  // namespace fathom
