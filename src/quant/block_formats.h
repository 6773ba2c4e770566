// What the formats' files share among themselves: 32 consecutive elements as integers with their scales.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/half.h"

namespace fathom {

// element i = scale[i / 16] * q[i] + min[i / 16], each operation rounded to f32.
struct IntBlock {
  int8_t q[32];
  float scale[2];
  float min[2];
};

// Elements [32 * index, 32 * index + 32) of a row.
void unpack_q4_0(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q4_1(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q5_0(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q5_1(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q8_0(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q2_k(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q3_k(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q4_k(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q5_k(const uint8_t* row, int64_t index, IntBlock& out);
void unpack_q6_k(const uint8_t* row, int64_t index, IntBlock& out);

// One block of 32.
void encode_q4_0(const float* in, uint8_t* block);
void encode_q4_1(const float* in, uint8_t* block);
void encode_q5_0(const float* in, uint8_t* block);
void encode_q5_1(const float* in, uint8_t* block);
void encode_q8_0(const float* in, uint8_t* block);

inline float load_f16(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, 2);
  return f32_of_f16(half);
}

inline void store_f16(float value, uint8_t* bytes) {
  const uint16_t half = f16_of_f32(value);
  std::memcpy(bytes, &half, 2);
}

inline void set_scale(IntBlock& block, float scale, float min = 0.0f) {
  block.scale[0] = block.scale[1] = scale;
  block.min[0] = block.min[1] = min;
}

// Quantises 32 values to `levels` steps: around zero with the largest value at -levels / 2 (returns the
// scale), or from the smallest value up (returns scale and minimum).
float quantise_symmetric(const float* in, int levels, uint8_t* q);
void quantise_from_min(const float* in, int levels, uint8_t* q, float* scale, float* min);

// The six-bit scales and minima of q4_k and q5_k: eight of each in twelve bytes.
void unpack_k_scales(const uint8_t* bytes, int sub, uint8_t* scale, uint8_t* min);

}  // namespace fathom
