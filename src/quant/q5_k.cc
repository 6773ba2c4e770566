// q5_k, 176 bytes for 256 elements: as q4_k, with 32 bytes of high bits before the nibbles (bit s of byte i:
// element i of the s-th 32).
#include "quant/block_formats.h"

namespace fathom {

void unpack_q5_k(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 176 * (index / 8);
  const int sub = static_cast<int>(index % 8);
  uint8_t scale, min;
  unpack_k_scales(block + 4, sub, &scale, &min);
  set_scale(out, load_f16(block) * static_cast<float>(scale),
            -(load_f16(block + 2) * static_cast<float>(min)));
  const uint8_t *high = block + 16, *nibbles = block + 48 + 32 * (sub / 2);
  for (int i = 0; i < 32; ++i) {
    out.q[i] = static_cast<int8_t>((nibbles[i] >> (4 * (sub % 2)) & 15) | (high[i] >> sub & 1) << 4);
  }
}

}  // namespace fathom
