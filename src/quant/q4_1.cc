// q4_1, 20 bytes for 32 elements: f16 scale, f16 minimum; nibbles as in q4_0, from 0.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q4_1(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 20 * index;
  set_scale(out, load_f16(block), load_f16(block + 2));
  for (int i = 0; i < 16; ++i) {
    out.q[i] = static_cast<int8_t>(block[4 + i] & 15);
    out.q[i + 16] = static_cast<int8_t>(block[4 + i] >> 4);
  }
}

void encode_q4_1(const float* in, uint8_t* block) {
  uint8_t q[32];
  float scale, min;
  quantise_from_min(in, 16, q, &scale, &min);
  store_f16(scale, block);
  store_f16(min, block + 2);
  for (int i = 0; i < 16; ++i) block[4 + i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
}

}  // namespace fathom
