#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/loss/cross_entropy.h"

namespace fathom {
namespace {

constexpr int64_t kLossPiece = 512;  // elements whose exponentials stay in the nearest cache

// Σ w · loss(row), the rows of weight 0 left out; losses in parallel, their sum in row order.
template <class Fn>
void add_rows_up(CpuBackend dev, const FloatRows& rows, const Tensor& weights, Tensor& losses, Tensor& out,
                 Fn loss) {
  const float* w = weights.data<float>();
  double* each = losses.data<double>();
  dev.pool.parallel_for(rows.rows, row_grain(rows.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) each[r] = w[r] != 0 ? static_cast<double>(w[r]) * loss(r) : 0.0;
  });
  double sum = 0;
  for (int64_t r = 0; r < rows.rows; ++r) sum += each[r];
  out.data<float>()[0] = static_cast<float>(sum);
}

// fill(row, w · d, out) for each row; zeros where the weight is 0.
template <class Fn>
void fill_gradient(CpuBackend dev, const FloatRows& rows, const Tensor& weights, const Tensor& d, Tensor& dx,
                   Fn fill) {
  const float* w = weights.data<float>();
  const float scale = d.data<float>()[0];
  dev.pool.parallel_for(rows.rows, row_grain(rows.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* to = dx.data<float>() + r * rows.width;
      if (w[r] == 0) {
        std::memset(to, 0, static_cast<size_t>(rows.width) * sizeof(float));
      } else {
        fill(r, w[r] * scale, to);
      }
    }
  });
}

// log Σ eˣ: exponentials in f32, their sum in f64 (four chains, joined in order).
double log_sum_exp(const RowKernels& kernels, const float* x, int64_t n) {
  const float largest = kernels.max(x, n);
  float power[kLossPiece];
  double sum[4] = {};
  for (int64_t at = 0; at < n; at += kLossPiece) {
    const int64_t count = std::min(kLossPiece, n - at);
    kernels.exp_less(x + at, largest, power, count);
    for (int64_t i = 0; i < count; ++i) sum[i % 4] += static_cast<double>(power[i]);
  }
  return static_cast<double>(largest) + std::log((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

}  // namespace

void cross_entropy_kernel(CpuBackend dev, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                          Tensor& log_sums, Tensor& losses, Tensor& out) {
  const FloatRows rows(logits);
  const RowKernels& kernels = row_kernels(dev.isa);
  const int32_t* target = targets.data<int32_t>();
  for (int64_t r = 0; r < rows.rows; ++r) {
    if (weights.data<float>()[r] != 0 && (target[r] < 0 || target[r] >= rows.width))
      fail("cross_entropy: target must be in [0, {}), got {} in row {}", rows.width, target[r], r);
  }
  add_rows_up(dev, rows, weights, losses, out, [&](int64_t r) {
    const double log_sum = log_sum_exp(kernels, rows[r], rows.width);
    log_sums.data<float>()[r] = static_cast<float>(log_sum);
    return log_sum - static_cast<double>(rows[r][target[r]]);
  });
}

void cross_entropy_gradient_kernel(CpuBackend dev, const Tensor& logits, const Tensor& targets,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_logits) {
  const FloatRows rows(logits);
  const auto exp_less = row_kernels(dev.isa).exp_less;
  fill_gradient(dev, rows, weights, d, d_logits, [&](int64_t r, float scale, float* to) {
    for (int64_t at = 0; at < rows.width; at += kLossPiece) {
      const int64_t end = std::min(at + kLossPiece, rows.width);
      exp_less(rows[r] + at, log_sums.data<float>()[r], to + at, end - at);
      for (int64_t i = at; i < end; ++i) to[i] *= scale;
    }
    to[targets.data<int32_t>()[r]] -= scale;
  });
}

void kl_divergence_kernel(CpuBackend dev, const Tensor& teacher, const Tensor& student, const Tensor& weights,
                          Tensor& log_sums, Tensor& losses, Tensor& out) {
  const FloatRows t(teacher), s(student);
  const RowKernels& kernels = row_kernels(dev.isa);
  float *t_sums = log_sums.data<float>(), *s_sums = t_sums + teacher.dim(0);
  add_rows_up(dev, s, weights, losses, out, [&](int64_t r) {
    const double t_sum = log_sum_exp(kernels, t[r], t.width), s_sum = log_sum_exp(kernels, s[r], s.width);
    t_sums[r] = static_cast<float>(t_sum);
    s_sums[r] = static_cast<float>(s_sum);
    float p[kLossPiece];
    double distance[4] = {};  // Σ p (t − s)
    for (int64_t at = 0; at < t.width; at += kLossPiece) {
      const int64_t count = std::min(kLossPiece, t.width - at);
      kernels.exp_less(t[r] + at, t_sums[r], p, count);
      for (int64_t i = 0; i < count; ++i) {
        const double apart = static_cast<double>(t[r][at + i]) - static_cast<double>(s[r][at + i]);
        distance[i % 4] += p[i] == 0 ? 0.0 : static_cast<double>(p[i]) * apart;
      }
    }
    return (distance[0] + distance[1]) + (distance[2] + distance[3]) - t_sum + s_sum;
  });
}

void kl_divergence_gradient_kernel(CpuBackend dev, const Tensor& teacher, const Tensor& student,
                                   const Tensor& weights, const Tensor& log_sums, const Tensor& d,
                                   Tensor& d_student) {
  const FloatRows t(teacher), s(student);
  const auto exp_less = row_kernels(dev.isa).exp_less;
  const float *t_sums = log_sums.data<float>(), *s_sums = t_sums + teacher.dim(0);
  fill_gradient(dev, s, weights, d, d_student, [&](int64_t r, float scale, float* to) {
    float p[kLossPiece];
    for (int64_t at = 0; at < s.width; at += kLossPiece) {
      const int64_t count = std::min(kLossPiece, s.width - at);
      exp_less(t[r] + at, t_sums[r], p, count);
      exp_less(s[r] + at, s_sums[r], to + at, count);
      for (int64_t i = 0; i < count; ++i) to[at + i] = scale * (to[at + i] - p[i]);
    }
  });
}

void narrow_losses_kernel(CpuBackend, const Tensor& losses, Tensor& out) {
  for (int64_t r = 0; r < out.dim(0); ++r)
    out.data<float>()[r] = static_cast<float>(losses.data<double>()[r]);
}

void mean_squared_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                         Tensor& losses, Tensor& out) {
  const FloatRows left(a), right(b);
  add_rows_up(dev, left, weights, losses, out, [&](int64_t r) {
    double sum = 0;
    for (int64_t i = 0; i < left.width; ++i) {
      const double apart = static_cast<double>(left[r][i]) - static_cast<double>(right[r][i]);
      sum += apart * apart;
    }
    return sum / static_cast<double>(left.width);
  });
}

void mean_squared_gradient_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, const Tensor& weights,
                                  const Tensor& d, float sign, Tensor& dx) {
  const FloatRows left(a), right(b);
  fill_gradient(dev, left, weights, d, dx, [&](int64_t r, float scale, float* to) {
    const float factor = sign * scale * 2.0f / static_cast<float>(left.width);
    for (int64_t i = 0; i < left.width; ++i) to[i] = factor * (left[r][i] - right[r][i]);
  });
}

}  // namespace fathom
