// Tiles of 8 × 12 with bfmmla (2 rows × 2 columns × 4 elements an instruction): 24 sums in registers hide its
// latency, and 10 loads serve 24 instructions. A panel holds, for each 4 elements of k, its lines one after
// the other, 4 elements of each: two neighbouring lines are one operand.
#include <arm_neon.h>

#include "quant/gemm_kernels.h"

namespace fathom {
namespace {

constexpr int kRows = 8, kColumns = 12, kStep = 4;

inline uint16_t round_to_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Eight elements, or four in the low half.
inline uint16x8_t load_eight(const float* x) {
  const bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(x));
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(x + 4)));
}
inline uint16x8_t load_eight(const uint16_t* x) {
  return vld1q_u16(x);
}
inline uint16x8_t load_four(const float* x) {
  uint16x8_t bits = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(vld1q_f32(x)));
  asm("" : "+w"(bits));  // clang 14 would interleave them as bf16, for which it has no instruction
  return bits;
}
inline uint16x8_t load_four(const uint16_t* x) {
  return vcombine_u16(vld1_u16(x), vdup_n_u16(0));
}
inline uint16_t load_one(float x) {
  return round_to_bf16(x);
}
inline uint16_t load_one(uint16_t x) {
  return x;
}

// Elements [begin, k) of some lines, one by one, and the zeros that fill the panel.
template <int kLines, class T>
void pack_slowly(const T* from, int64_t line_step, int64_t k_step, int64_t lines, int64_t begin, int64_t k,
                 uint16_t* panel) {
  for (int64_t i = begin; i < (k + kStep - 1) / kStep * kStep; ++i) {
    uint16_t* to = panel + i / kStep * kStep * kLines + i % kStep;
    for (int64_t line = 0; line < kLines; ++line) {
      to[line * kStep] = line < lines && i < k ? load_one(from[line * line_step + i * k_step]) : 0;
    }
  }
}

// Lines that are dense along k: two lines at a time, eight elements of each.
template <int kLines, class T>
void pack_along_k(const T* from, int64_t line_step, int64_t k, uint16_t* panel) {
  for (int line = 0; line < kLines; line += 2) {
    const T *first = from + line * line_step, *second = first + line_step;
    uint16_t* to = panel + line * kStep;
    for (int64_t i = 0; i + 8 <= k; i += 8, to += 2 * kStep * kLines) {
      const uint64x2_t a = vreinterpretq_u64_u16(load_eight(first + i)),
                       b = vreinterpretq_u64_u16(load_eight(second + i));
      vst1q_u16(to, vreinterpretq_u16_u64(vzip1q_u64(a, b)));
      vst1q_u16(to + kStep * kLines, vreinterpretq_u16_u64(vzip2q_u64(a, b)));
    }
  }
}

// Lines side by side: four elements of k of four lines are transposed.
template <int kLines, class T>
void pack_across(const T* from, int64_t k_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + kStep <= k; i += kStep) {
    const T* row = from + i * k_step;
    uint16_t* to = panel + i * kLines;
#pragma GCC unroll 3
    for (int line = 0; line < kLines; line += 4) {
      const uint16x8_t a = load_four(row + line), b = load_four(row + k_step + line),
                       c = load_four(row + 2 * k_step + line), d = load_four(row + 3 * k_step + line);
      const uint16x8_t ac = vzip1q_u16(a, c), bd = vzip1q_u16(b, d);
      vst1q_u16(to + line * kStep, vzip1q_u16(ac, bd));
      vst1q_u16(to + line * kStep + 8, vzip2q_u16(ac, bd));
    }
  }
}

template <int kLines, class T>
void pack_typed(const T* from, const GemmFactor& factor, int64_t lines, int64_t k, uint16_t* panel) {
  int64_t done = 0;
  if (lines == kLines && factor.k_step == 1) {
    pack_along_k<kLines>(from, factor.line_step, k, panel);
    done = k / 8 * 8;
  } else if (lines == kLines && factor.line_step == 1) {
    pack_across<kLines>(from, factor.k_step, k, panel);
    done = k / kStep * kStep;
  }
  pack_slowly<kLines>(from, factor.line_step, factor.k_step, lines, done, k, panel);
}

template <int kLines>
void pack(const GemmFactor& factor, int64_t lines, int64_t k, void* to) {
  auto* panel = static_cast<uint16_t*>(to);
  if (factor.bf16)
    pack_typed<kLines>(static_cast<const uint16_t*>(factor.data), factor, lines, k, panel);
  else
    pack_typed<kLines>(static_cast<const float*>(factor.data), factor, lines, k, panel);
}

inline bfloat16x8_t load_pair(const uint16_t* panel) {
  return vreinterpretq_bf16_u16(vld1q_u16(panel));
}

inline void store_four(float* c, float32x4_t sum, float32x4_t alpha, float32x4_t beta, bool add) {
  const float32x4_t scaled = vmulq_f32(alpha, sum);
  vst1q_f32(c, add ? vfmaq_f32(scaled, beta, vld1q_f32(c)) : scaled);
}

// The lanes of a sum: row 0 column 0, row 0 column 1, row 1 column 0, row 1 column 1.
inline void store_tile(const float32x4_t sums[kRows / 2][kColumns / 2], float* c, int64_t stride, float alpha,
                       float beta) {
  const float32x4_t a = vdupq_n_f32(alpha), b = vdupq_n_f32(beta);
  const bool add = beta != 0.0f;
#pragma GCC unroll 4
  for (int i = 0; i < kRows / 2; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kColumns / 2; j += 2) {
      const float64x2_t left = vreinterpretq_f64_f32(sums[i][j]),
                        right = vreinterpretq_f64_f32(sums[i][j + 1]);
      float* to = c + 2 * i * stride + 2 * j;
      store_four(to, vreinterpretq_f32_f64(vzip1q_f64(left, right)), a, b, add);
      store_four(to + stride, vreinterpretq_f32_f64(vzip2q_f64(left, right)), a, b, add);
    }
  }
}

void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  const auto *a = static_cast<const uint16_t*>(a_panel), *b = static_cast<const uint16_t*>(b_panel);
  float32x4_t sums[kRows / 2][kColumns / 2];
#pragma GCC unroll 4
  for (int i = 0; i < kRows / 2; ++i) {
#pragma GCC unroll 6
    for (int j = 0; j < kColumns / 2; ++j) sums[i][j] = vdupq_n_f32(0.0f);
  }
  for (int64_t at = 0; at < k; at += kStep, a += kRows * kStep, b += kColumns * kStep) {
    bfloat16x8_t columns[kColumns / 2];
#pragma GCC unroll 6
    for (int j = 0; j < kColumns / 2; ++j) columns[j] = load_pair(b + 2 * kStep * j);
#pragma GCC unroll 4
    for (int i = 0; i < kRows / 2; ++i) {
      const bfloat16x8_t rows = load_pair(a + 2 * kStep * i);
      // Compilers would load all four pairs of rows at once, and then have no registers left for two sums.
      asm volatile("" ::: "memory");
#pragma GCC unroll 6
      for (int j = 0; j < kColumns / 2; ++j) sums[i][j] = vbfmmlaq_f32(sums[i][j], rows, columns[j]);
    }
  }
  if (tile.rows == kRows && tile.columns == kColumns)
    return store_tile(sums, tile.c, tile.stride, tile.alpha, tile.beta);
  float whole[kRows * kColumns];
  store_tile(sums, whole, kColumns, tile.alpha, 0.0f);
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t c = 0; c < tile.columns; ++c) {
      float& to = tile.c[r * tile.stride + c];
      const float sum = whole[r * kColumns + c];
      to = tile.beta != 0.0f ? __builtin_fmaf(tile.beta, to, sum) : sum;
    }
  }
}

}  // namespace

const GemmKernels kGemmBf16I8mm = {.rows = kRows,
                                   .columns = kColumns,
                                   .step = kStep,
                                   .element = 2,
                                   .pack_a = pack<kRows>,
                                   .pack_b = pack<kColumns>,
                                   .multiply = multiply};

}  // namespace fathom
