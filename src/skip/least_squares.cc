#include "skip/least_squares.h"

#include <algorithm>
#include <cmath>

namespace fathom {

NormalEquations::NormalEquations(int64_t width)
    : n_(width + 1),
      matrix_(static_cast<size_t>(n_ * (n_ + 1) / 2), 0.0),
      right_(static_cast<size_t>(n_), 0.0) {}

void NormalEquations::add(ThreadPool& pool, std::span<const float> x, std::span<const double> y) {
  const int64_t width = n_ - 1, rows = std::ssize(y);
  pool.parallel_for(n_, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* row = matrix_.data() + i * (i + 1) / 2;
      for (int64_t r = 0; r < rows; ++r) {
        const float* input = x.data() + r * width;
        const double factor = i < width ? double{input[i]} : 1.0;
        for (int64_t j = 0; j < std::min(i + 1, width); ++j) row[j] += factor * double{input[j]};
        if (i == width) row[width] += 1.0;
        right_[static_cast<size_t>(i)] += factor * y[static_cast<size_t>(r)];
      }
    }
  });
  for (const double one : y) squares_ += one * one;
  rows_ += rows;
}

std::vector<double> NormalEquations::solve(double ridge) {
  double diagonal = 0;
  for (int64_t i = 0; i + 1 < n_; ++i) diagonal += at(i, i);
  const double extra = ridge * diagonal / static_cast<double>(std::max<int64_t>(1, n_ - 1)) + 1e-12;
  std::vector<double> kept = matrix_;
  for (int64_t i = 0; i + 1 < n_; ++i) at(i, i) += extra;
  factorise();
  std::vector<double> x = right_;
  for (int64_t i = 0; i < n_; ++i) {
    for (int64_t j = 0; j < i; ++j) x[static_cast<size_t>(i)] -= at(i, j) * x[static_cast<size_t>(j)];
    x[static_cast<size_t>(i)] /= at(i, i);
  }
  for (int64_t i = n_ - 1; i >= 0; --i) {
    for (int64_t j = i + 1; j < n_; ++j) x[static_cast<size_t>(i)] -= at(j, i) * x[static_cast<size_t>(j)];
    x[static_cast<size_t>(i)] /= at(i, i);
  }
  matrix_ = std::move(kept);
  return x;
}

double NormalEquations::squared_error(std::span<const double> w) const {
  double error = squares_;
  for (int64_t i = 0; i < n_; ++i) {
    const double wi = w[static_cast<size_t>(i)];
    error -= 2 * wi * right_[static_cast<size_t>(i)];
    for (int64_t j = 0; j <= i; ++j) {
      const double term = wi * w[static_cast<size_t>(j)] * matrix_[static_cast<size_t>(i * (i + 1) / 2 + j)];
      error += i == j ? term : 2 * term;
    }
  }
  return std::max(0.0, error);
}

double NormalEquations::variation() const {
  const double sum = right_.back();
  return rows_ > 0 ? std::max(0.0, squares_ - sum * sum / static_cast<double>(rows_)) : 0.0;
}

// Cholesky, in place.
void NormalEquations::factorise() {
  for (int64_t j = 0; j < n_; ++j) {
    for (int64_t i = j; i < n_; ++i) {
      double sum = at(i, j);
      for (int64_t k = 0; k < j; ++k) sum -= at(i, k) * at(j, k);
      at(i, j) = i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / at(j, j);
    }
  }
}

}  // namespace fathom
