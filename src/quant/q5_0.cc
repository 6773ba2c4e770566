// q5_0, 22 bytes for 32 elements: f16 scale; 32 high bits, element i at bit i; nibbles as in q4_0. Each
// minus 16.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q5_0(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 22 * index;
  set_scale(out, load_f16(block));
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? block[6 + i] & 15 : block[6 + i - 16] >> 4;
    const int high = block[2 + i / 8] >> (i % 8) & 1;
    out.q[i] = static_cast<int8_t>((low | high << 4) - 16);
  }
}

void encode_q5_0(const float* in, uint8_t* block) {
  uint8_t q[32];
  store_f16(quantise_symmetric(in, 32, q), block);
  std::memset(block + 2, 0, 4);
  for (int i = 0; i < 32; ++i) block[2 + i / 8] |= static_cast<uint8_t>((q[i] >> 4) << (i % 8));
  for (int i = 0; i < 16; ++i) block[6 + i] = static_cast<uint8_t>((q[i] & 15) | q[i + 16] << 4);
}

}  // namespace fathom
