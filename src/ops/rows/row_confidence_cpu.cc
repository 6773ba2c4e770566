#include <algorithm>
#include <cmath>

#include "ops/kernels/row_access.h"
#include "ops/rows/row_confidence.h"

namespace fathom {
namespace {

// Exponentials in f32, their sum in f64 (four chains, joined in order); the largest is 1.
float gap(const RowKernels& kernels, const float* x, int64_t n) {
  constexpr int64_t kPiece = 512;
  const float largest = kernels.max(x, n);
  float power[kPiece];
  double sum[4] = {};
  int64_t top = 0;  // how many are the largest
  float second = 0;
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    kernels.exp_less(x + at, largest, power, count);
    for (int64_t i = 0; i < count; ++i) {
      sum[i % 4] += power[i];
      if (x[at + i] == largest) {
        ++top;
      } else {
        second = std::max(second, power[i]);
      }
    }
  }
  if (top > 1) return 0;
  return static_cast<float>((1.0 - double{second}) / ((sum[0] + sum[1]) + (sum[2] + sum[3])));
}

}  // namespace

void softmax_gap_kernel(CpuBackend dev, const Tensor& logits, Tensor& out) {
  const FloatRows rows(logits);
  const RowKernels& kernels = row_kernels(dev.isa);
  dev.pool.parallel_for(rows.rows, row_grain(rows.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) out.data<float>()[r] = gap(kernels, rows[r], rows.width);
  });
}

void cosine_rows_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const FloatRows left(a), right(b);
  const RowKernels& kernels = row_kernels(dev.isa);
  dev.pool.parallel_for(left.rows, row_grain(left.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float *x = left[r], *y = right[r];
      const int64_t n = left.width;
      const double lengths =
          std::sqrt(double{kernels.dot(x, x, n)}) * std::sqrt(double{kernels.dot(y, y, n)});
      out.data<float>()[r] = lengths > 0 ? static_cast<float>(double{kernels.dot(x, y, n)} / lengths) : 0.0f;
    }
  });
}

}  // namespace fathom
