// Tiles of 6 × 16: 12 sums in registers, two loads and six broadcasts for 12 fused multiply-adds.
#include <immintrin.h>

#include "quant/gemm_f32_body.h"

namespace fathom {
namespace {

constexpr int kRows = 6, kColumns = 16;

inline void store_tile(const __m256 sums[kRows][2], float* c, int64_t stride, float alpha, float beta) {
  const __m256 a = _mm256_set1_ps(alpha), b = _mm256_set1_ps(beta);
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      float* to = c + r * stride + 8 * half;
      const __m256 scaled = _mm256_mul_ps(sums[r][half], a);
      _mm256_storeu_ps(to, beta != 0.0f ? _mm256_fmadd_ps(b, _mm256_loadu_ps(to), scaled) : scaled);
    }
  }
}

void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  const auto *a = static_cast<const float*>(a_panel), *b = static_cast<const float*>(b_panel);
  __m256 sums[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
  for (int64_t i = 0; i < k; ++i, a += kRows, b += kColumns) {
    const __m256 left = _mm256_loadu_ps(b), right = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m256 row = _mm256_broadcast_ss(a + r);
      sums[r][0] = _mm256_fmadd_ps(row, left, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(row, right, sums[r][1]);
    }
  }
  if (tile.rows == kRows && tile.columns == kColumns)
    return store_tile(sums, tile.c, tile.stride, tile.alpha, tile.beta);
  float whole[kRows * kColumns];
  store_tile(sums, whole, kColumns, tile.alpha, 0.0f);
  store_part<kColumns>(whole, tile);
}

}  // namespace

const GemmKernels kGemmF32Avx2 = {.rows = kRows,
                                  .columns = kColumns,
                                  .step = 1,
                                  .element = 4,
                                  .pack_a = pack<kRows>,
                                  .pack_b = pack<kColumns>,
                                  .multiply = multiply};

}  // namespace fathom
