// bf16 weights in place with bfmmla (2 rows x 2 columns x 4 elements an instruction), activations rounded to
// bf16. One row uses the same instruction in the same order with an empty second row.
#include <arm_neon.h>

#include "quant/kernels.h"

namespace fathom {
namespace {

inline uint16_t round_to_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint16x4_t round_four(const float* x) {
  return vreinterpret_u16_bf16(vcvt_bf16_f32(vld1q_f32(x)));
}

// For each 8 elements 64 bytes: rows 0 and 1 side by side for the first 4 elements, then for the next 4; then
// rows 2, 3.
void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed) {
  for (int64_t i = 0; i < k; i += 8) {
    uint16_t* record = reinterpret_cast<uint16_t*>(packed + 8 * i);
    for (int r = 0; r < kTileRows; ++r) {
      uint16_t* to = record + 16 * (r / 2) + 4 * (r % 2);
      const float* from = x + r * stride + i;
      if (r < rows && i + 8 <= k) {
        vst1_u16(to, round_four(from));
        vst1_u16(to + 8, round_four(from + 4));
      } else {
        for (int j = 0; j < 8; ++j)
          to[j % 4 + 8 * (j / 4)] = r < rows && i + j < k ? round_to_bf16(from[j]) : 0;
      }
    }
  }
}

inline bfloat16x8_t load_eight(const uint8_t* bytes, int64_t n) {
  if (n >= 8) return vreinterpretq_bf16_u8(vld1q_u8(bytes));
  uint8_t padded[16] = {};
  __builtin_memcpy(padded, bytes, static_cast<size_t>(2 * n));
  return vreinterpretq_bf16_u8(vld1q_u8(padded));
}

inline bfloat16x8_t zip_low(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_f64(vzip1q_f64(vreinterpretq_f64_bf16(a), vreinterpretq_f64_bf16(b)));
}
inline bfloat16x8_t zip_high(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_f64(vzip2q_f64(vreinterpretq_f64_bf16(a), vreinterpretq_f64_bf16(b)));
}

constexpr int kColumns = 8;

inline bfloat16x8_t load_packed(const uint8_t* bytes) {
  return vreinterpretq_bf16_u8(vld1q_u8(bytes));
}

// 2 * kPairs rows by eight columns, `step` apart; lanes of acc: row 0 column 0, row 0 column 1, row 1 column
// 0, row 1 column 1. group_bytes: from a group of packed rows to the next.
template <int kPairs>
inline void multiply_block(const uint8_t* packed, int64_t group_bytes, int64_t rows, int64_t k,
                           const Weights& weights, int64_t column, float* out, int64_t stride) {
  const uint8_t* ws[kColumns];
  for (int c = 0; c < kColumns; ++c) {
    const int64_t wanted = column + c * weights.step;
    ws[c] = weights.data + (wanted < weights.columns ? wanted : weights.columns - 1) * weights.stride;
  }
  float32x4_t acc[kPairs][kColumns / 2];
  for (auto& row : acc) {
    for (float32x4_t& a : row) a = vdupq_n_f32(0.0f);
  }
  for (int64_t i = 0; i < k; i += 8) {
    bfloat16x8_t x[kPairs][2];
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const uint8_t* record = packed + p / 2 * group_bytes + 8 * i + 32 * (p % 2);
      x[p][0] = load_packed(record);
      x[p][1] = load_packed(record + 16);
    }
#pragma GCC unroll 4
    for (int c = 0; c < kColumns / 2; ++c) {
      const bfloat16x8_t a = load_eight(ws[2 * c] + 2 * i, k - i),
                         b = load_eight(ws[2 * c + 1] + 2 * i, k - i);
      const bfloat16x8_t first = zip_low(a, b), second = zip_high(a, b);
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
        acc[p][c] = vbfmmlaq_f32(vbfmmlaq_f32(acc[p][c], x[p][0], first), x[p][1], second);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < 2 * kPairs; ++r) {
    if (r >= rows) break;
    float values[kColumns / 2][4];
    for (int c = 0; c < kColumns / 2; ++c) vst1q_f32(values[c], acc[r / 2][c]);
    for (int c = 0; c < kColumns && column + c * weights.step < weights.columns; ++c) {
      out[r * stride + column + c * weights.step] = values[c / 2][2 * (r % 2) + c % 2];
    }
  }
}

void multiply(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t stride) {
  const int64_t group_bytes = (k + 7) / 8 * 8 * kTileRows * 2;
  for (int64_t c = 0; c < weights.step; ++c) {
    for (int64_t r = 0; r < rows;) {
      const int64_t left = rows - r;
      const uint8_t* group = packed + r / kTileRows * group_bytes;
      float* to = out + r * stride;
      if (left > 4) {
        multiply_block<4>(group, group_bytes, left, k, weights, c, to, stride);
        r += 8;
      } else {
        if (left > 2)
          multiply_block<2>(group, group_bytes, left, k, weights, c, to, stride);
        else
          multiply_block<1>(group, group_bytes, left, k, weights, c, to, stride);
        r += 4;
      }
    }
  }
}

}  // namespace

const Bf16Kernels kI8mmBf16 = {.pack_rows = pack_rows, .multiply = multiply};

}  // namespace fathom
