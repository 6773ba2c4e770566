// q8_0, 34 bytes for 32 elements: f16 scale; 32 signed bytes.
#include <cmath>

#include "quant/block_formats.h"

namespace fathom {

void unpack_q8_0(const uint8_t* row, int64_t index, IntBlock& out) {
  const uint8_t* block = row + 34 * index;
  set_scale(out, load_f16(block));
  std::memcpy(out.q, block + 2, 32);
}

void encode_q8_0(const float* in, uint8_t* block) {
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) largest = std::fmax(largest, std::fabs(in[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  store_f16(scale, block);
  for (int i = 0; i < 32; ++i) {
    const float q = std::round(in[i] * inverse);  // halves away from zero
    block[2 + i] =
        static_cast<uint8_t>(q >= -127.0f && q <= 127.0f ? static_cast<int8_t>(q) : 0);  // else: not finite
  }
}

}  // namespace fathom
