// q4_0, 18 bytes for 32 elements: f16 scale; 16 bytes of nibbles, elements 0-15 low and 16-31 high, each
// minus 8.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q4_0(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 18 * index;
  set_scale(out, load_f16(block));
  for (int i = 0; i < 16; ++i) {
    out.q[i] = static_cast<int8_t>((block[2 + i] & 15) - 8);
    out.q[i + 16] = static_cast<int8_t>((block[2 + i] >> 4) - 8);
  }
}

void encode_q4_0(const float* in, uint8_t* block) {
  uint8_t q[32];
  store_f16(quantise_symmetric(in, 16, q), block);
  for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(q[i] | q[i + 16] << 4);
}

}  // namespace fathom
