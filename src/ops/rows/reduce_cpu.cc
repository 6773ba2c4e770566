#include <algorithm>

#include "ops/kernels/row_access.h"
#include "ops/rows/reduce.h"

namespace fathom {

void mean_columns_kernel(CpuBackend dev, const Tensor& x, Tensor& out) {
  const FloatRows in(x);
  const auto sum = row_kernels(dev.isa).sum;
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      out.data<float>()[r] = sum(in[r], in.width) / static_cast<float>(in.width);
  });
}

void mean_columns_gradient_kernel(CpuBackend dev, const Tensor& d, Tensor& dx) {
  const int64_t width = dx.dim(1);
  dev.pool.parallel_for(present_rows(dx), row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float share = d.data<float>()[r] / static_cast<float>(width);
      std::fill_n(dx.data<float>() + r * width, width, share);
    }
  });
}

// A few thousand numbers at most: one thread, in row order, in f64.

void mean_rows_kernel(CpuBackend, const Tensor& x, const Tensor& weights, Tensor& total_of, Tensor& out) {
  double sum = 0, total = 0;
  for (int64_t r = 0; r < present_rows(x); ++r) {
    const double weight = weights ? static_cast<double>(weights.data<float>()[r]) : 1.0;
    if (weight == 0) continue;  // whatever x is there
    sum += weight * static_cast<double>(x.data<float>()[r]);
    total += weight;
  }
  out.data<float>()[0] = total == 0 ? 0.0f : static_cast<float>(sum / total);
  *total_of.data<double>() = total;
}

void mean_rows_gradient_kernel(CpuBackend, const Tensor& weights, const Tensor& total_of, const Tensor& d,
                               Tensor& dx) {
  const double total = *total_of.data<double>();
  const double share = total == 0 ? 0.0 : static_cast<double>(d.data<float>()[0]) / total;
  for (int64_t r = 0; r < present_rows(dx); ++r) {
    const double weight = weights ? static_cast<double>(weights.data<float>()[r]) : 1.0;
    dx.data<float>()[r] = static_cast<float>(share * weight);
  }
}

void variance_rows_kernel(CpuBackend, const Tensor& x, Tensor& mean_of, Tensor& out) {
  const int64_t rows = present_rows(x);
  const float* v = x.data<float>();
  double sum = 0, squares = 0;
  for (int64_t r = 0; r < rows; ++r) sum += static_cast<double>(v[r]);
  const double mean = rows > 0 ? sum / static_cast<double>(rows) : 0.0;
  for (int64_t r = 0; r < rows; ++r) {
    const double distance = static_cast<double>(v[r]) - mean;
    squares += distance * distance;
  }
  out.data<float>()[0] = rows > 0 ? static_cast<float>(squares / static_cast<double>(rows)) : 0.0f;
  *mean_of.data<double>() = mean;
}

void variance_rows_gradient_kernel(CpuBackend, const Tensor& x, const Tensor& mean_of, const Tensor& d,
                                   Tensor& dx) {
  const int64_t rows = present_rows(x);
  const double mean = *mean_of.data<double>();
  for (int64_t r = 0; r < rows; ++r) {
    const double distance = static_cast<double>(x.data<float>()[r]) - mean;
    dx.data<float>()[r] = static_cast<float>(2.0 * distance / static_cast<double>(rows) *
                                             static_cast<double>(d.data<float>()[0]));
  }
}

void weighted_sum_kernel(CpuBackend, std::span<const Tensor> scalars, std::span<const float> weights,
                         Tensor& out) {
  double sum = 0;
  for (size_t i = 0; i < scalars.size(); ++i)
    sum += static_cast<double>(weights[i]) * static_cast<double>(scalars[i].data<float>()[0]);
  out.data<float>()[0] = static_cast<float>(sum);
}

}  // namespace fathom
