#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/loss/token_log_probs.h"

namespace fathom {
namespace {

// log Σ e^(x − largest): exponentials in f32, their sum in f64 (four chains, joined in order).
double log_sum_exp(const RowKernels& kernels, const float* x, int64_t n, float largest) {
  constexpr int64_t kPiece = 512;
  float power[kPiece];
  double sum[4] = {};
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    kernels.exp_less(x + at, largest, power, count);
    for (int64_t i = 0; i < count; ++i) sum[i % 4] += power[i];
  }
  return std::log((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace

void token_log_probs_kernel(CpuBackend dev, const Tensor& logits, const Tensor& targets, Tensor& out) {
  const FloatRows rows(logits);
  const RowKernels& kernels = row_kernels(dev.isa);
  const int32_t* target = targets.data<int32_t>();
  for (int64_t r = 0; r < rows.rows; ++r) {
    if (target[r] < 0 || target[r] >= rows.width) {
      fail("token_log_probs: target must be in [0, {}), got {} in row {}", rows.width, target[r], r);
    }
  }
  dev.pool.parallel_for(rows.rows, row_grain(rows.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float largest = kernels.max(rows[r], rows.width);
      const double total = log_sum_exp(kernels, rows[r], rows.width, largest);
      const double chosen = static_cast<double>(rows[r][target[r]]) - static_cast<double>(largest);
      out.data<float>()[r] = static_cast<float>(chosen - total);
    }
  });
}

}  // namespace fathom
