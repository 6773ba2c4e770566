#include <algorithm>
#include <cmath>

#include "ops/kernels/row_access.h"
#include "ops/rows/rms_norm.h"

namespace fathom {

void rms_norm_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out) {
  const FloatRows in(x);
  const auto norm = row_kernels(dev.isa).rms_norm;
  const float* w = weight.data<float>();
  float* y = out.data<float>();
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      norm(in[r], w, y + r * in.width, in.width, params.eps, params.weight_offset);
  });
}

void rms_norm_dx_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                        const Tensor& d, Tensor& dx) {
  const FloatRows in(x), from(d);
  const auto gradient = row_kernels(dev.isa).rms_norm_gradient;
  const float* w = weight.data<float>();
  float* to = dx.data<float>();
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      gradient(in[r], w, from[r], to + r * in.width, in.width, params.eps, params.weight_offset);
  });
}

// A number per row.
int64_t rms_norm_scratch(CpuBackend, const Tensor& x) {
  return x.dim(-1) > 0 ? x.numel() / x.dim(-1) : 0;
}

// Σ over rows of d · x / root: each column is one thread's, in row order and f64.
void rms_norm_dweight_kernel(CpuBackend dev, const Tensor& x, RmsNormParams params, const Tensor& d,
                             Tensor& scratch, Tensor& d_weight) {
  const FloatRows in(x), from(d);
  const auto dot = row_kernels(dev.isa).dot;
  float* inverse = scratch.data<float>();
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float mean = dot(in[r], in[r], in.width) / static_cast<float>(in.width);
      inverse[r] = 1.0f / std::sqrt(mean + params.eps);
    }
  });
  constexpr int64_t kColumns = 64;
  float* to = d_weight.data<float>();
  dev.pool.parallel_for((in.width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kColumns, count = std::min(kColumns, in.width - first);
      double sum[kColumns] = {};
      for (int64_t r = 0; r < in.rows; ++r) {
        const float *xr = in[r] + first, *dr = from[r] + first, scale = inverse[r];
        for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<double>(xr[i] * scale * dr[i]);
      }
      for (int64_t i = 0; i < count; ++i) to[first + i] += static_cast<float>(sum[i]);
    }
  });
}

}  // namespace fathom
