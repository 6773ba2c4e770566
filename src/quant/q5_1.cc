// q5_1, 24 bytes for 32 elements: f16 scale, f16 minimum; high bits and nibbles as in q5_0, from 0.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q5_1(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 24 * index;
  set_scale(out, load_f16(block), load_f16(block + 2));
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? block[8 + i] & 15 : block[8 + i - 16] >> 4;
    const int high = block[4 + i / 8] >> (i % 8) & 1;
    out.q[i] = static_cast<int8_t>(low | high << 4);
  }
}

void encode_q5_1(const float* in, uint8_t* block) {
  uint8_t q[32];
  float scale, min;
  quantise_from_min(in, 32, q, &scale, &min);
  store_f16(scale, block);
  store_f16(min, block + 2);
  std::memset(block + 4, 0, 4);
  for (int i = 0; i < 32; ++i) block[4 + i / 8] |= static_cast<uint8_t>((q[i] >> 4) << (i % 8));
  for (int i = 0; i < 16; ++i) block[8 + i] = static_cast<uint8_t>((q[i] & 15) | q[i + 16] << 4);
}

}  // namespace fathom
