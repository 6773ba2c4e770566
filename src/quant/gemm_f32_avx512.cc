// Tiles of 12 × 32: 24 sums in registers, two loads and twelve broadcasts for 24 fused multiply-adds.
#include <immintrin.h>

#include "quant/gemm_f32_body.h"

namespace fathom {
namespace {

constexpr int kRows = 12, kColumns = 32;

inline void store_tile(const __m512 sums[kRows][2], float* c, int64_t stride, float alpha, float beta) {
  const __m512 a = _mm512_set1_ps(alpha), b = _mm512_set1_ps(beta);
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* to = c + r * stride + 16 * half;
      const __m512 scaled = _mm512_mul_ps(sums[r][half], a);
      _mm512_storeu_ps(to, beta != 0.0f ? _mm512_fmadd_ps(b, _mm512_loadu_ps(to), scaled) : scaled);
    }
  }
}

void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  const auto *a = static_cast<const float*>(a_panel), *b = static_cast<const float*>(b_panel);
  __m512 sums[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  for (int64_t i = 0; i < k; ++i, a += kRows, b += kColumns) {
    const __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 row = _mm512_set1_ps(a[r]);
      sums[r][0] = _mm512_fmadd_ps(row, left, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(row, right, sums[r][1]);
    }
  }
  if (tile.rows == kRows && tile.columns == kColumns)
    return store_tile(sums, tile.c, tile.stride, tile.alpha, tile.beta);
  float whole[kRows * kColumns];
  store_tile(sums, whole, kColumns, tile.alpha, 0.0f);
  store_part<kColumns>(whole, tile);
}

}  // namespace

const GemmKernels kGemmF32Avx512 = {.rows = kRows,
                                    .columns = kColumns,
                                    .step = 1,
                                    .element = 4,
                                    .pack_a = pack<kRows>,
                                    .pack_b = pack<kColumns>,
                                    .multiply = multiply};

}  // namespace fathom
