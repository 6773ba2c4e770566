// q6_k, 210 bytes for 256 elements: 128 bytes of nibbles, 64 bytes of two high bits, 16 signed scales per 16
// elements, f16 scale of the scales. Each element minus 32. In each half of 128, the t-th 32 take the nibbles
// of 32 bytes (t odd: the second 32; t >= 2: the high ones) and the t-th bit pair of the half's 32 bytes of
// high bits.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q6_k(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 210 * (index / 8);
  const int sub = static_cast<int>(index % 8), half = sub / 4, t = sub % 4;
  const float scale = load_f16(block + 208);
  for (int i = 0; i < 2; ++i) {
    out.scale[i] = scale * static_cast<float>(static_cast<int8_t>(block[192 + 2 * sub + i]));
    out.min[i] = 0.0f;
  }
  const uint8_t *nibbles = block + 64 * half + 32 * (t % 2), *high = block + 128 + 32 * half;
  for (int i = 0; i < 32; ++i) {
    const int low = nibbles[i] >> (4 * (t / 2)) & 15;
    out.q[i] = static_cast<int8_t>((low | (high[i] >> (2 * t) & 3) << 4) - 32);
  }
}

}  // namespace fathom
