// q4_k, 144 bytes for 256 elements: f16 scale of the scales, f16 scale of the minima, 12 bytes of six-bit
// scales and minima per 32 elements, 128 bytes of nibbles (64 elements in 32 bytes: the first half low, the
// second high).
#include "quant/block_formats.h"

namespace fathom {

void unpack_q4_k(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 144 * (index / 8);
  const int sub = static_cast<int>(index % 8);
  uint8_t scale, min;
  unpack_k_scales(block + 4, sub, &scale, &min);
  set_scale(out, load_f16(block) * static_cast<float>(scale),
            -(load_f16(block + 2) * static_cast<float>(min)));
  const uint8_t* nibbles = block + 16 + 32 * (sub / 2);
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int8_t>(nibbles[i] >> (4 * (sub % 2)) & 15);
}

}  // namespace fathom
