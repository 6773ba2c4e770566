#include <algorithm>
#include <span>
#include <vector>

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/rows/by_sequence.h"

namespace fathom {
namespace {

void check_sequences(const Tensor& sequence, int64_t rows, int64_t sequences, const char* op) {
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t s = sequence.data<int32_t>()[r];
    if (s < 0 || s >= sequences)
      fail("{}: a sequence must be in [0, {}), got {} in row {}", op, sequences, s, r);
  }
}

float weight_of(const Tensor& weights, int64_t row) {
  return weights ? weights.data<float>()[row] : 1.0f;
}

// inverse: 1 / Σ w of each sequence, 0 where that is 0.
void inverse_totals(const Tensor& sequence, const Tensor& weights, int64_t rows, std::span<float> inverse) {
  std::vector<double> totals(inverse.size());
  for (int64_t r = 0; r < rows; ++r)
    totals[static_cast<size_t>(sequence.data<int32_t>()[r])] += static_cast<double>(weight_of(weights, r));
  for (size_t i = 0; i < totals.size(); ++i)
    inverse[i] = totals[i] == 0 ? 0.0f : static_cast<float>(1.0 / totals[i]);
}

constexpr int64_t kSummedColumns = 64;

}  // namespace

// Each column is one thread's, in row order.
void mean_by_sequence_kernel(CpuBackend dev, const Tensor& x, const Tensor& sequence, const Tensor& weights,
                             Tensor& out) {
  const int64_t rows = present_rows(x), width = x.dim(1), sequences = out.dim(0), step = x.stride(0);
  check_sequences(sequence, rows, sequences, "mean_by_sequence");
  std::vector<float> inverse(static_cast<size_t>(sequences));
  inverse_totals(sequence, weights, rows, inverse);
  float* y = out.data<float>();
  dev.pool.parallel_for(width, kSummedColumns, [&](int64_t begin, int64_t end) {
    for (int64_t s = 0; s < sequences; ++s) std::fill(y + s * width + begin, y + s * width + end, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = x.data<float>() + r * step;
      const float weight = weight_of(weights, r);
      if (weight == 0) continue;  // whatever x is there
      float* to = y + sequence.data<int32_t>()[r] * width;
      for (int64_t i = begin; i < end; ++i) to[i] += weight * from[i];
    }
    for (int64_t s = 0; s < sequences; ++s) {
      const float share = inverse[static_cast<size_t>(s)];
      for (int64_t i = begin; i < end; ++i) y[s * width + i] *= share;
    }
  });
}

void mean_by_sequence_gradient_kernel(CpuBackend dev, const Tensor& sequence, const Tensor& weights,
                                      const Tensor& d, Tensor& shares, Tensor& dx) {
  const int64_t rows = present_rows(dx), width = dx.dim(1);
  const std::span<float> inverse(shares.data<float>(), static_cast<size_t>(shares.numel()));
  inverse_totals(sequence, weights, rows, inverse);
  dev.pool.parallel_for(rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t s = sequence.data<int32_t>()[r];
      const float share = weight_of(weights, r) * inverse[static_cast<size_t>(s)];
      const float* from = d.data<float>() + s * width;
      float* to = dx.data<float>() + r * width;
      for (int64_t i = 0; i < width; ++i) to[i] = from[i] * share;
    }
  });
}

void expand_by_sequence_kernel(CpuBackend, const Tensor& s, const Tensor& sequence, Tensor& out) {
  const int64_t rows = present_rows(sequence);
  check_sequences(sequence, rows, s.dim(0), "expand_by_sequence");
  for (int64_t r = 0; r < rows; ++r) out.data<float>()[r] = s.data<float>()[sequence.data<int32_t>()[r]];
}

void expand_by_sequence_gradient_kernel(CpuBackend, const Tensor& sequence, const Tensor& d, Tensor& ds) {
  std::vector<double> sums(static_cast<size_t>(ds.dim(0)));
  for (int64_t r = 0; r < present_rows(sequence); ++r)
    sums[static_cast<size_t>(sequence.data<int32_t>()[r])] += static_cast<double>(d.data<float>()[r]);
  for (size_t i = 0; i < sums.size(); ++i) ds.data<float>()[i] = static_cast<float>(sums[i]);
}

}  // namespace fathom
