// AVX2: a few rows by eight columns, weights in place. 32 elements of each column are transposed and used at
// once for all of the rows.
#include "quant/avx2_products.h"

namespace fathom {
namespace {

constexpr int kColumns = 8;

// Up to four rows over 32 elements.
template <class F, int kRows>
inline void add_elements(const uint8_t* record, const uint8_t* w, const __m256* scale, __m256 min,
                         __m256* acc) {
#pragma GCC unroll 2
  for (int group = 0; group < F::kGroups; ++group) add_group<F, kRows>(record, w, group, scale[group], acc);
  if constexpr (F::kMin) add_minima<kRows>(record, min, acc);
}

// Up to kRows rows; each column of eight is a stream of its own.
template <class F, int kRows>
void dot_some_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
                   int64_t stride) {
  constexpr int kFirst = kRows < kTileRows ? kRows : kTileRows;
  const int64_t group_bytes = k / 32 * kRowRecord;
  for (int64_t c = 0; c < weights.step && c < weights.columns; ++c) {
    Eight blocks = eight_columns(weights, c);
    __m256 acc[kRows];
    for (__m256& row : acc) row = _mm256_setzero_ps();
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      __m128 scales[2][F::kSubs * F::kGroups], mins[2][F::kSubs];
      for (int quad = 0; quad < 2; ++quad) F::scales(blocks.column + 4 * quad, scales[quad], mins[quad]);
      for (int sub = 0; sub < F::kSubs; ++sub) {
        __m256 scale[F::kGroups], min = _mm256_setzero_ps();
        for (int group = 0; group < F::kGroups; ++group) {
          const int i = sub * F::kGroups + group;
          scale[group] = _mm256_set_m128(scales[1][i], scales[0][i]);
        }
        if constexpr (F::kMin) min = _mm256_set_m128(mins[1][sub], mins[0][sub]);
        alignas(32) uint8_t w[32 * kColumns];
        transpose_columns<F>(blocks.column, sub, w);
        const uint8_t* const record = packed + (b + sub) * kRowRecord;
        add_elements<F, kFirst>(record, w, scale, min, acc);
        if constexpr (kRows > kTileRows)
          add_elements<F, kRows - kFirst>(record + group_bytes, w, scale, min, acc + kFirst);
      }
      for (const uint8_t*& block : blocks.column) block += F::kBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float values[kColumns];
      _mm256_storeu_ps(values, acc[r]);
      store_columns(values, kColumns, weights.columns, c, weights.step, out + r * stride);
    }
  }
}

template <class F>
void dot_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t stride) {
  const auto run = rows <= 2   ? dot_some_rows<F, 2>
                   : rows <= 4 ? dot_some_rows<F, 4>
                   : rows <= 6 ? dot_some_rows<F, 6>
                               : dot_some_rows<F, 8>;
  run(packed, rows, k, weights, out, stride);
}

template <class F>
constexpr StreamCounts kStreams = {kColumns, kColumns};

}  // namespace

const FewRowsKernels kAvx2FewRows = {
    .streams = FATHOM_PER_FORMAT(kStreams),
    .dot_rows = FATHOM_PER_FORMAT(dot_rows),
};

}  // namespace fathom
