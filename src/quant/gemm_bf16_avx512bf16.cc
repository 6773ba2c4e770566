// Tiles of 12 × 32 with vdpbf16ps (16 columns × 2 elements an instruction, the row's two elements broadcast).
#include <immintrin.h>

#include "quant/gemm_bf16_pairs.h"

namespace fathom {
namespace {

constexpr int kRows = 12, kColumns = 32, kStep = 2;

inline __m512bh as_pairs(__m512i bits) {
  __m512bh pairs;
  __builtin_memcpy(&pairs, &bits, sizeof pairs);
  return pairs;
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
    if (r < tile.rows) {
      store_sixteen(sums[r][0], tile, r, 0);
      store_sixteen(sums[r][1], tile, r, 16);
    }
  }
}

}  // namespace

const GemmKernels kGemmBf16Avx512 = {.rows = kRows,
                                     .columns = kColumns,
                                     .step = kStep,
                                     .element = 2,
                                     .pack_a = pack_pairs<kRows, kStep>,
                                     .pack_b = pack_pairs<kColumns, kStep>,
                                     .multiply = multiply};

}  // namespace fathom
