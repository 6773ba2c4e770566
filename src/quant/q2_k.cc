// q2_k, 84 bytes for 256 elements: 16 bytes of four-bit scale and minimum per 16 elements; 64 bytes of
// two-bit values; f16 scale of the scales, f16 scale of the minima.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q2_k(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 84 * (index / 8);
  const int sub = static_cast<int>(index % 8);
  const float scale = load_f16(block + 80), min = load_f16(block + 82);
  for (int half = 0; half < 2; ++half) {
    const uint8_t packed = block[2 * sub + half];
    out.scale[half] = scale * static_cast<float>(packed & 15);
    out.min[half] = -(min * static_cast<float>(packed >> 4));
  }
  const uint8_t* values = block + 16 + 32 * (sub / 4);  // 128 elements: four shifts of the same 32 bytes
  for (int i = 0; i < 32; ++i) out.q[i] = static_cast<int8_t>(values[i] >> (2 * (sub % 4)) & 3);
}

}  // namespace fathom
