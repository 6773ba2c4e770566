// What AVX2's kernels for a few rows and for many do alike: eight columns at a time. Everything has internal
// linkage, as in avx_formats.h.
#pragma once

#include "quant/avx_formats.h"
#include "quant/kernels.h"

namespace fathom {
namespace {  // NOLINT(google-build-namespaces): see above

// The blocks of eight columns, of as many streams.
struct Eight {
  const uint8_t* column[8];
};

inline Eight eight_columns(const Weights& weights, int64_t first) {
  Eight blocks;
  for (int quad = 0; quad < 8; quad += 4) {
    const Four four =
        four_rows(weights.data, weights.stride, weights.columns, first + quad * weights.step, weights.step);
    for (int i = 0; i < 4; ++i) blocks.column[quad + i] = four.row[i];
  }
  return blocks;
}

// 32 bytes of each of four columns -> in place i the lanes hold elements i of the columns, and 4 + i of them
// (of four bytes each).
inline void transpose_four(__m256i (&v)[4]) {
  const __m256i low01 = _mm256_unpacklo_epi32(v[0], v[1]), high01 = _mm256_unpackhi_epi32(v[0], v[1]),
                low23 = _mm256_unpacklo_epi32(v[2], v[3]), high23 = _mm256_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm256_unpacklo_epi64(low01, low23);
  v[1] = _mm256_unpackhi_epi64(low01, low23);
  v[2] = _mm256_unpacklo_epi64(high01, high23);
  v[3] = _mm256_unpackhi_epi64(high01, high23);
}

// 32 elements of each of eight columns, transposed: at 32 i elements 4 i … 4 i + 3 of all of them.
template <class F>
inline void transpose_columns(const uint8_t* const* blocks, int sub, uint8_t* out) {
  __m256i left[4], right[4];
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    left[c] = F::load(blocks[c], sub);
    right[c] = F::load(blocks[4 + c], sub);
  }
  transpose_four(left);
  transpose_four(right);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    auto* at = reinterpret_cast<__m256i*>(out) + i;
    _mm256_storeu_si256(at, _mm256_permute2x128_si256(left[i], right[i], 0x20));
    _mm256_storeu_si256(at + 4, _mm256_permute2x128_si256(left[i], right[i], 0x31));
  }
}

// Products of bytes, summed in pairs, that can be added up as int16: each is at most 2 · 127 · the largest
// weight.
template <class F>
constexpr int kSummed = F::kLargest > 63   ? 1
                        : F::kLargest > 31 ? 2
                        : F::kLargest > 15 ? 4
                                           : 8;

// w: four elements of each column; x: those of a row, for each column.
template <class F>
inline __m256i pairs_of(__m256i w, __m256i x) {
  if constexpr (F::kSigned) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}

// Adds to acc, for up to four rows, one group of 32 elements of eight columns. record: the rows', as
// pack_rows packs them; w: the columns', transposed; scale: the group's.
template <class F, int kRows>
inline void add_group(const uint8_t* record, const uint8_t* w, int group, __m256 scale, __m256* acc) {
  constexpr int kSteps = 8 / F::kGroups, kTogether = kSummed<F> < kSteps ? kSummed<F> : kSteps;
  __m256i dots[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const uint8_t* const minus = record + 160 + 4 * r;
    const int both = F::kGroups == 1 ? load_int(minus) + load_int(minus + 16) : load_int(minus + 16 * group);
    dots[r] = _mm256_set1_epi32(F::kOffset * both);
  }
  for (int step = group * kSteps; step < (group + 1) * kSteps; step += kTogether) {
    __m256i columns[kTogether];
#pragma GCC unroll 8
    for (int i = 0; i < kTogether; ++i) columns[i] = load32(w + 32 * (step + i));
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* const q = record + 32 * r + 4 * step;
      __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i)
        sum = _mm256_add_epi16(sum, pairs_of<F>(columns[i], _mm256_set1_epi32(load_int(q + 4 * i))));
      dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
    }
  }
  const float* const x_scale = reinterpret_cast<const float*>(record + 128);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_mul_ps(scale, _mm256_set1_ps(x_scale[r])),
                             acc[r]);
  }
}

// The same with the columns' minima.
template <int kRows>
inline void add_minima(const uint8_t* record, __m256 min, __m256* acc) {
  const float* const sums = reinterpret_cast<const float*>(record + 144);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) acc[r] = _mm256_fmadd_ps(min, _mm256_set1_ps(sums[r]), acc[r]);
}

}  // namespace
}  // namespace fathom
