// Least squares over many rows: the normal equations, in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace fathom {

// Σ x xᵀ and Σ x y with x = (input, 1): the lower triangle, row after row.
class NormalEquations {
 public:
  explicit NormalEquations(int64_t width);

  // x: (rows, width); y: (rows). Rows of the triangle are shared out among the threads, each summed in row
  // order.
  void add(ThreadPool& pool, std::span<const float> x, std::span<const double> y);
  // The weights and, last, the bias, which the ridge leaves alone. ridge: relative to the inputs' mean
  // square.
  std::vector<double> solve(double ridge);

  double squared_error(std::span<const double> w) const;  // Σ (x·w − y)²
  double variation() const;                               // Σ (y − mean y)²
  double mean() const { return rows_ > 0 ? right_.back() / static_cast<double>(rows_) : 0.0; }  // of y
  int64_t rows() const { return rows_; }

 private:
  double& at(int64_t i, int64_t j) { return matrix_[static_cast<size_t>(i * (i + 1) / 2 + j)]; }
  void factorise();

  int64_t n_, rows_ = 0;
  std::vector<double> matrix_, right_;
  double squares_ = 0;
};

}  // namespace fathom
