// q3_k, 110 bytes for 256 elements: 32 bytes of high bits, 64 bytes of two-bit values, 12 bytes of six-bit
// scales per 16 elements, f16 scale of the scales. An element is its two low bits, minus 4 where its high bit
// is clear.
#include "quant/block_formats.h"

namespace fathom {

void unpack_q3_k(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 110 * (index / 8);
  const int sub = static_cast<int>(index % 8);
  const uint8_t *values = block + 32 + 32 * (sub / 4), *scales = block + 96;
  const float scale = load_f16(block + 108);
  for (int half = 0; half < 2; ++half) {
    const int group = 2 * sub + half;
    const int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    const int high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    out.scale[half] = scale * static_cast<float>((low | high << 4) - 32);
    out.min[half] = 0.0f;
  }
  for (int i = 0; i < 32; ++i) {
    const int low = values[i] >> (2 * (sub % 4)) & 3;
    const int high = block[i] >> sub & 1;
    out.q[i] = static_cast<int8_t>(low - (high ? 0 : 4));
  }
}

}  // namespace fathom
