// Tiles of 8 × 12: 24 sums in registers, five loads for 24 fused multiply-adds.
#include <arm_neon.h>

#include "quant/gemm_f32_body.h"

namespace fathom {
namespace {

constexpr int kRows = 8, kColumns = 12, kQuads = kColumns / 4;

// f32 lines that are dense along k: four elements of four lines are transposed.
template <int kLines>
void pack_along_k(const float* from, int64_t line_step, int64_t k, float* panel) {
  for (int line = 0; line < kLines; line += 4) {
    for (int64_t i = 0; i + 4 <= k; i += 4) {
      const float* at = from + line * line_step + i;
      const float32x4_t a = vld1q_f32(at), b = vld1q_f32(at + line_step), c = vld1q_f32(at + 2 * line_step),
                        d = vld1q_f32(at + 3 * line_step);
      const float32x4_t ac = vzip1q_f32(a, c), bd = vzip1q_f32(b, d), ac2 = vzip2q_f32(a, c),
                        bd2 = vzip2q_f32(b, d);
      float* to = panel + i * kLines + line;
      vst1q_f32(to, vzip1q_f32(ac, bd));
      vst1q_f32(to + kLines, vzip2q_f32(ac, bd));
      vst1q_f32(to + 2 * kLines, vzip1q_f32(ac2, bd2));
      vst1q_f32(to + 3 * kLines, vzip2q_f32(ac2, bd2));
    }
  }
}

template <int kLines>
void pack_fast(const GemmFactor& factor, int64_t lines, int64_t k, void* to) {
  if (lines < kLines || factor.k_step != 1 || factor.bf16 || factor.round)
    return pack<kLines>(factor, lines, k, to);
  const auto* from = static_cast<const float*>(factor.data);
  const int64_t done = k / 4 * 4;
  pack_along_k<kLines>(from, factor.line_step, k, static_cast<float*>(to));
  GemmFactor rest = factor;
  rest.data = from + done;
  pack<kLines>(rest, lines, k - done, static_cast<float*>(to) + done * kLines);
}

inline void store_tile(const float32x4_t sums[kRows][kQuads], float* c, int64_t stride, float alpha,
                       float beta) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int q = 0; q < kQuads; ++q) {
      float* to = c + r * stride + 4 * q;
      const float32x4_t scaled = vmulq_n_f32(sums[r][q], alpha);
      vst1q_f32(to, beta != 0.0f ? vfmaq_n_f32(scaled, vld1q_f32(to), beta) : scaled);
    }
  }
}

// Four rows: a vector's lanes.
inline void add_rows(float32x4_t sums[4][kQuads], float32x4_t a, const float32x4_t b[kQuads]) {
#pragma GCC unroll 3
  for (int q = 0; q < kQuads; ++q) {
    sums[0][q] = vfmaq_laneq_f32(sums[0][q], b[q], a, 0);
    sums[1][q] = vfmaq_laneq_f32(sums[1][q], b[q], a, 1);
    sums[2][q] = vfmaq_laneq_f32(sums[2][q], b[q], a, 2);
    sums[3][q] = vfmaq_laneq_f32(sums[3][q], b[q], a, 3);
  }
}

void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  const auto *a = static_cast<const float*>(a_panel), *b = static_cast<const float*>(b_panel);
  float32x4_t sums[kRows][kQuads];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int q = 0; q < kQuads; ++q) sums[r][q] = vdupq_n_f32(0.0f);
  }
  for (int64_t i = 0; i < k; ++i, a += kRows, b += kColumns) {
    const float32x4_t columns[kQuads] = {vld1q_f32(b), vld1q_f32(b + 4), vld1q_f32(b + 8)};
    add_rows(sums, vld1q_f32(a), columns);
    add_rows(sums + 4, vld1q_f32(a + 4), columns);
  }
  if (tile.rows == kRows && tile.columns == kColumns)
    return store_tile(sums, tile.c, tile.stride, tile.alpha, tile.beta);
  float whole[kRows * kColumns];
  store_tile(sums, whole, kColumns, tile.alpha, 0.0f);
  store_part<kColumns>(whole, tile);
}

}  // namespace

const GemmKernels kGemmF32Dotprod = {.rows = kRows,
                                     .columns = kColumns,
                                     .step = 1,
                                     .element = 4,
                                     .pack_a = pack_fast<kRows>,
                                     .pack_b = pack_fast<kColumns>,
                                     .multiply = multiply};

}  // namespace fathom
