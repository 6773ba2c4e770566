// The oracle of the other instruction sets: tiles of 4 × 8 in plain loops.
#include "quant/gemm_f32_body.h"

namespace fathom {
namespace {

constexpr int kRows = 4, kColumns = 8;

void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  const auto *a = static_cast<const float*>(a_panel), *b = static_cast<const float*>(b_panel);
  float sums[kRows * kColumns] = {};
  for (int64_t i = 0; i < k; ++i) {
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kColumns; ++c) {
        float& sum = sums[r * kColumns + c];
        sum = __builtin_fmaf(a[i * kRows + r], b[i * kColumns + c], sum);
      }
    }
  }
  for (float& sum : sums) sum *= tile.alpha;
  store_part<kColumns>(sums, tile);
}

}  // namespace

const GemmKernels kGemmF32Scalar = {.rows = kRows,
                                    .columns = kColumns,
                                    .step = 1,
                                    .element = 4,
                                    .pack_a = pack<kRows>,
                                    .pack_b = pack<kColumns>,
                                    .multiply = multiply};

}  // namespace fathom
