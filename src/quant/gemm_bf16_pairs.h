// Packing for x86's bf16 products: pairs of elements along k. A panel holds, for each 2 elements of k, its
// lines one after the other, 2 elements of each, and is padded with zeros to whole lines and to a multiple of
// `padded` elements. For files built with AVX-512 alone.
#pragma once

#include <immintrin.h>

#include "quant/gemm_kernels.h"

namespace fathom {
namespace {

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

// Elements [begin, k) one by one, and the zeros.
template <int kLines, int kPadded, class T>
void pack_slowly(const T* from, int64_t line_step, int64_t k_step, int64_t lines, int64_t begin, int64_t k,
                 uint16_t* panel) {
  for (int64_t i = begin; i < (k + kPadded - 1) / kPadded * kPadded; ++i) {
    uint16_t* to = panel + i / 2 * 2 * kLines + i % 2;
    for (int64_t line = 0; line < kLines; ++line) {
      to[line * 2] = line < lines && i < k ? load_one(from[line * line_step + i * k_step]) : 0;
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
      uint16_t* to = panel + i * kLines + line * 2;
#pragma GCC unroll 8
      for (int p = 0; p < 8; ++p) __builtin_memcpy(to + p * 2 * kLines, pairs + p, 4);
    }
  }
}

// Elements i and i + 1 of k, of sixteen lines that lie side by side.
template <class T>
__m512i interleaved_pairs(const T* from, int64_t k_step) {
  const __m512i low = widen(load_sixteen(from)), high = widen(load_sixteen(from + k_step));
  return _mm512_or_si512(low, _mm512_maskz_slli_epi32(kAll, high, 16));
}

// Lines side by side: whole sixteens of them, or one by one.
template <int kLines, class T>
void pack_across(const T* from, int64_t k_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + 2 <= k; i += 2) {
    const T* row = from + i * k_step;
    uint16_t* to = panel + i * kLines;
    int64_t line = 0;
    for (; line + 16 <= kLines; line += 16)
      _mm512_storeu_si512(to + line * 2, interleaved_pairs(row + line, k_step));
    for (; line < kLines; ++line) {
      to[line * 2] = load_one(row[line]);
      to[line * 2 + 1] = load_one(row[k_step + line]);
    }
  }
}

template <int kLines, int kPadded, class T>
void pack_typed(const T* from, const GemmFactor& factor, int64_t lines, int64_t k, uint16_t* panel) {
  int64_t done = 0;
  if (lines == kLines && factor.k_step == 1) {
    pack_along_k<kLines>(from, factor.line_step, k, panel);
    done = k / 16 * 16;
  } else if (lines == kLines && factor.line_step == 1) {
    pack_across<kLines>(from, factor.k_step, k, panel);
    done = k / 2 * 2;
  }
  pack_slowly<kLines, kPadded>(from, factor.line_step, factor.k_step, lines, done, k, panel);
}

template <int kLines, int kPadded>
void pack_pairs(const GemmFactor& factor, int64_t lines, int64_t k, void* to) {
  auto* panel = static_cast<uint16_t*>(to);
  if (factor.bf16)
    pack_typed<kLines, kPadded>(static_cast<const uint16_t*>(factor.data), factor, lines, k, panel);
  else
    pack_typed<kLines, kPadded>(static_cast<const float*>(factor.data), factor, lines, k, panel);
}

// alpha · sums + beta · c, sixteen columns from `column` on, as far as the tile goes.
inline void store_sixteen(__m512 sums, const GemmTile& tile, int64_t row, int64_t column) {
  const int64_t left = tile.columns - column;
  const auto mask = static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
  float* to = tile.c + row * tile.stride + column;
  __m512 value = _mm512_mul_ps(_mm512_set1_ps(tile.alpha), sums);
  if (tile.beta != 0.0f)
    value = _mm512_fmadd_ps(_mm512_set1_ps(tile.beta), _mm512_maskz_loadu_ps(mask, to), value);
  _mm512_mask_storeu_ps(to, mask, value);
}

}  // namespace
}  // namespace fathom
