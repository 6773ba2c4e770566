// Tiles of 12 × 32 with vdpbf16ps (16 columns × 2 elements an instruction, the row's two elements broadcast).
// A panel holds, for each 2 elements of k, its lines one after the other, 2 elements of each.
#include <immintrin.h>

#include "quant/gemm.h"

namespace fathom {
namespace {

constexpr int kRows = 12, kColumns = 32, kStep = 2;

inline uint16_t load_one(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint16_t load_one(uint16_t value) {
  return value;
}

// Sixteen elements as bf16.
inline __m256i load_sixteen(const float* x) {
  const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x));
  __m256i bits;
  __builtin_memcpy(&bits, &rounded, sizeof bits);
  return bits;
}
inline __m256i load_sixteen(const uint16_t* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}

// Masks that hide nothing: g++ 12 finds the unmasked forms' own undefined operand uninitialised.
constexpr __mmask16 kAll = 0xffff;

inline __m512i widen(__m256i x) {
  return _mm512_maskz_cvtepu16_epi32(kAll, x);
}

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

// Lines that are dense along k: sixteen elements of a line are eight pairs, each to its own place.
template <int kLines, class T>
void pack_along_k(const T* from, int64_t line_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + 16 <= k; i += 16) {
    for (int64_t line = 0; line < kLines; ++line) {
      uint32_t pairs[8];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), load_sixteen(from + line * line_step + i));
      uint16_t* to = panel + i * kLines + line * kStep;
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p) __builtin_memcpy(to + p * kStep * kLines, pairs + p, 4);
    }
  }
}

// Lines side by side, 32 of them: two elements of k of sixteen lines are interleaved.
template <class T>
void pack_across(const T* from, int64_t k_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + kStep <= k; i += kStep) {
    for (int64_t line = 0; line < kColumns; line += 16) {
      const __m512i low = widen(load_sixteen(from + i * k_step + line));
      const __m512i high = widen(load_sixteen(from + (i + 1) * k_step + line));
      _mm512_storeu_si512(panel + i * kColumns + line * kStep,
                          _mm512_or_si512(low, _mm512_maskz_slli_epi32(kAll, high, 16)));
    }
  }
}

// The same, twelve of them.
template <class T>
void pack_rows_across(const T* from, int64_t k_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + kStep <= k; i += kStep) {
    for (int64_t line = 0; line < kRows; ++line) {
      panel[i * kRows + line * kStep] = load_one(from[i * k_step + line]);
      panel[i * kRows + line * kStep + 1] = load_one(from[(i + 1) * k_step + line]);
    }
  }
}

template <int kLines, class T>
void pack_typed(const T* from, const GemmFactor& factor, int64_t lines, int64_t k, uint16_t* panel) {
  int64_t done = 0;
  if (lines == kLines && factor.k_step == 1) {
    pack_along_k<kLines>(from, factor.line_step, k, panel);
    done = k / 16 * 16;
  } else if (lines == kLines && factor.line_step == 1) {
    if constexpr (kLines == kColumns)
      pack_across(from, factor.k_step, k, panel);
    else
      pack_rows_across(from, factor.k_step, k, panel);
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

inline __m512bh as_pairs(__m512i bits) {
  __m512bh pairs;
  __builtin_memcpy(&pairs, &bits, sizeof pairs);
  return pairs;
}

inline void store_row(const __m512 sums[2], const GemmTile& tile, int64_t row) {
  const __m512 alpha = _mm512_set1_ps(tile.alpha), beta = _mm512_set1_ps(tile.beta);
  for (int half = 0; half < 2; ++half) {
    const int64_t left = tile.columns - 16 * half;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
    float* to = tile.c + row * tile.stride + 16 * half;
    __m512 value = _mm512_mul_ps(alpha, sums[half]);
    if (tile.beta != 0.0f) value = _mm512_fmadd_ps(beta, _mm512_maskz_loadu_ps(mask, to), value);
    _mm512_mask_storeu_ps(to, mask, value);
  }
}

void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  const auto *a = static_cast<const uint16_t*>(a_panel), *b = static_cast<const uint16_t*>(b_panel);
  __m512 sums[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t at = 0; at < k; at += kStep, a += kRows * kStep, b += kColumns * kStep) {
    const __m512bh left = as_pairs(_mm512_loadu_si512(b)), right = as_pairs(_mm512_loadu_si512(b + 32));
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * kStep, 4);
      const __m512bh row = as_pairs(_mm512_set1_epi32(pair));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], row, left);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], row, right);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    if (r < tile.rows) store_row(sums[r], tile, r);
  }
}

}  // namespace

const GemmKernels kGemmBf16Avx512 = {.rows = kRows,
                                     .columns = kColumns,
                                     .step = kStep,
                                     .element = 2,
                                     .pack_a = pack<kRows>,
                                     .pack_b = pack<kColumns>,
                                     .multiply = multiply};

}  // namespace fathom
