#include <algorithm>
#include <cmath>

#include "ops/optimizer/adafactor_kernel.h"

namespace fathom {
namespace {

constexpr int64_t kColumns = 64;  // of a column sum, by one thread

class AdafactorStep {
 public:
  AdafactorStep(CpuBackend dev, AdafactorCall& call)
      : dev_(dev),
        call_(call),
        p_(call.params),
        gradient_(call.gradient.data<float>()),
        moments_(call.moments.data<float>()),
        squares_(call.scratch.data<double>()) {}

  void run() {
    if (call_.factored) {
      row_means();
      column_means(moments_ + call_.rows);
    } else {
      for (int64_t k = 0; k < call_.columns; ++k) follow(moments_[k], square(k));
    }
    apply(p_.rate * size());
  }

 private:
  float gradient(int64_t i) const { return gradient_[i] * p_.gradient_factor; }
  double square(int64_t i) const {
    const auto g = static_cast<double>(gradient(i));
    return g * g + static_cast<double>(p_.eps);
  }
  void follow(float& mean, double value) const {
    mean = p_.beta2 * mean + (1 - p_.beta2) * static_cast<float>(value);
  }

  // What the tensor's step is relative to.
  double size() const {
    if (!p_.scale_by_size) return 1;
    const float* values = call_.value.data<float>();
    const int64_t count = call_.value.numel();
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<double>(values[i]);
      sum += value * value;
    }
    return std::max(kSmallestSize, std::sqrt(sum / static_cast<double>(count)));
  }

  void row_means() const {
    dev_.pool.parallel_for(call_.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        double sum = 0;
        for (int64_t k = 0; k < call_.columns; ++k) sum += square(row * call_.columns + k);
        follow(moments_[row], sum / static_cast<double>(call_.columns));
      }
    });
  }

  void column_means(float* means) const {
    dev_.pool.parallel_for(call_.columns, kColumns, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kColumns) {
        const int64_t count = std::min(kColumns, end - first);
        double sums[kColumns] = {};
        for (int64_t row = 0; row < call_.rows; ++row) {
          for (int64_t k = 0; k < count; ++k) sums[k] += square(row * call_.columns + first + k);
        }
        for (int64_t k = 0; k < count; ++k)
          follow(means[first + k], sums[k] / static_cast<double>(call_.rows));
      }
    });
  }

  // fn(row, 1 / sqrt(R_row / mean(R)))
  template <class Fn>
  void each_row(double mean_of_rows, Fn&& fn) const {
    const auto factor = [&](int64_t row) {
      if (!call_.factored) return 1.0f;
      return static_cast<float>(1 / std::sqrt(static_cast<double>(moments_[row]) / mean_of_rows));
    };
    dev_.pool.parallel_for(call_.rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) fn(row, factor(row));
    });
  }

  // u = g / sqrt(v), v of row i and column j = R_i · C_j / mean(R)
  void apply(double rate) const {
    const int64_t rows = call_.rows, columns = call_.columns;
    double mean_of_rows = 0;
    for (int64_t row = 0; call_.factored && row < rows; ++row)
      mean_of_rows += static_cast<double>(moments_[row]);
    mean_of_rows /= static_cast<double>(rows);
    const float* by_column = call_.factored ? moments_ + rows : moments_;

    each_row(mean_of_rows, [&](int64_t row, float factor) {
      double sum = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const auto u = static_cast<double>(gradient(row * columns + k) * factor / std::sqrt(by_column[k]));
        sum += u * u;
      }
      squares_[row] = sum;
    });
    double total = 0;
    for (int64_t row = 0; row < rows; ++row) total += squares_[row];
    const double rms = std::sqrt(total / static_cast<double>(rows * columns));
    const auto scale = static_cast<float>(rate / std::max(1.0, rms / static_cast<double>(p_.update_clip)));
    const auto keep = static_cast<float>(1 - rate * p_.decay);

    float* value = call_.value.data<float>();
    float* mean = call_.mean ? call_.mean.data<float>() : nullptr;
    each_row(mean_of_rows, [&](int64_t row, float factor) {
      for (int64_t k = 0; k < columns; ++k) {
        const int64_t i = row * columns + k;
        float u = scale * gradient(i) * factor / std::sqrt(by_column[k]);
        if (mean) u = mean[i] = p_.beta1 * mean[i] + (1 - p_.beta1) * u;
        value[i] = value[i] * keep - u;
      }
    });
  }

  CpuBackend dev_;
  AdafactorCall& call_;
  const AdafactorParams& p_;
  const float* gradient_;
  float* moments_;
  double* squares_;  // (rows)
};

}  // namespace

void adafactor_kernel(CpuBackend dev, AdafactorCall& call) {
  AdafactorStep(dev, call).run();
}

}  // namespace fathom
