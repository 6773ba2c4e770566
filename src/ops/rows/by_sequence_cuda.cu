#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/by_sequence.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per kThreads columns of a sequence; a thread reads its column of every row, in row order.
__global__ void mean_of_sequence(DeviceFloatRows x, const int32_t* sequence, const float* weights,
                                 unsigned int pieces, int64_t sequences, float* out, int32_t* fault) {
  const int64_t s = blockIdx.x / pieces;
  const int64_t column = static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x;
  if (column >= x.width) return;
  float sum = 0.0f;
  double total = 0.0;
  for (int64_t r = 0; r < x.rows && x.has(r); ++r) {
    if (sequence[r] < 0 || sequence[r] >= sequences) report_fault(fault, CudaFault::kSequence);
    if (sequence[r] != s) continue;
    const float weight = weights ? weights[r] : 1.0f;
    if (weight == 0.0f) continue;
    sum += weight * x.data[r * x.step + column];
    total += weight;
  }
  out[s * x.width + column] = total == 0.0 ? 0.0f : sum * static_cast<float>(1.0 / total);
}

// Σ values over a sequence's rows in f64, by a block; null: ones. Thread t takes rows t, t + kThreads, ….
__device__ double sum_of_sequence(const float* values, const int32_t* sequence, int64_t rows, int64_t s) {
  double sum = 0.0;
  for (int64_t r = threadIdx.x; r < rows; r += kThreads)
    if (sequence[r] == s) sum += values ? static_cast<double>(values[r]) : 1.0;
  return block_sum(sum);
}

// A block per sequence.
__global__ void inverse_totals(const int32_t* sequence, const float* weights, const int32_t* count,
                               int64_t rows, float* shares) {
  const double total = sum_of_sequence(weights, sequence, count ? *count : rows, blockIdx.x);
  if (threadIdx.x == 0) shares[blockIdx.x] = total == 0.0 ? 0.0f : static_cast<float>(1.0 / total);
}

// A block per row. The forward pass has reported sequences outside.
__global__ void spread_means(const float* d, const int32_t* sequence, const float* weights,
                             const float* shares, const int32_t* count, int64_t width, int64_t sequences,
                             float* dx) {
  const int64_t row = blockIdx.x;
  if (count && row >= *count) return;
  const int64_t s = sequence[row];
  const bool inside = s >= 0 && s < sequences;
  const float share = inside ? (weights ? weights[row] : 1.0f) * shares[s] : 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += kThreads)
    dx[row * width + i] = inside ? d[s * width + i] * share : 0.0f;
}

__global__ void sum_expanded(const float* d, const int32_t* sequence, const int32_t* count, int64_t rows,
                             float* ds) {
  const double sum = sum_of_sequence(d, sequence, count ? *count : rows, blockIdx.x);
  if (threadIdx.x == 0) ds[blockIdx.x] = static_cast<float>(sum);
}

__global__ void expand(const float* s, const int32_t* sequence, const int32_t* count, int64_t rows,
                       int64_t sequences, float* out, int32_t* fault) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows || (count && r >= *count)) return;
  int64_t from = sequence[r];
  if (from < 0 || from >= sequences) {
    report_fault(fault, CudaFault::kSequence);
    out[r] = 0.0f;
    return;
  }
  out[r] = s[from];
}

}  // namespace

void mean_by_sequence_kernel(CudaBackend dev, const Tensor& x, const Tensor& sequence, const Tensor& weights,
                             Tensor& out) {
  if (out.numel() == 0) return;
  const unsigned int pieces = blocks_for(x.dim(1), kThreads);
  mean_of_sequence<<<static_cast<unsigned int>(out.dim(0)) * pieces, kThreads, 0, dev.handle.stream>>>(
      DeviceFloatRows(x), sequence.data<int32_t>(), weights ? weights.data<float>() : nullptr, pieces,
      out.dim(0), out.data<float>(), dev.handle.fault);
  check_launch("mean_by_sequence");
}

void mean_by_sequence_gradient_kernel(CudaBackend dev, const Tensor& sequence, const Tensor& weights,
                                      const Tensor& d, Tensor& shares, Tensor& dx) {
  if (dx.numel() == 0 || d.numel() == 0) return;
  const float* weight = weights ? weights.data<float>() : nullptr;
  inverse_totals<<<blocks_for(d.dim(0), 1), kThreads, 0, dev.handle.stream>>>(
      sequence.data<int32_t>(), weight, dx.row_count(), dx.dim(0), shares.data<float>());
  spread_means<<<blocks_for(dx.dim(0), 1), kThreads, 0, dev.handle.stream>>>(
      d.data<float>(), sequence.data<int32_t>(), weight, shares.data<float>(), dx.row_count(), dx.dim(1),
      d.dim(0), dx.data<float>());
  check_launch("the gradient of mean_by_sequence");
}

void expand_by_sequence_kernel(CudaBackend dev, const Tensor& s, const Tensor& sequence, Tensor& out) {
  const int64_t rows = sequence.dim(0);
  if (rows == 0) return;
  expand<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      s.data<float>(), sequence.data<int32_t>(), sequence.row_count(), rows, s.dim(0), out.data<float>(),
      dev.handle.fault);
  check_launch("expand_by_sequence");
}

void expand_by_sequence_gradient_kernel(CudaBackend dev, const Tensor& sequence, const Tensor& d,
                                        Tensor& ds) {
  if (ds.numel() == 0) return;
  sum_expanded<<<blocks_for(ds.dim(0), 1), kThreads, 0, dev.handle.stream>>>(
      d.data<float>(), sequence.data<int32_t>(), sequence.row_count(), sequence.dim(0), ds.data<float>());
  check_launch("the gradient of expand_by_sequence");
}

}  // namespace fathom
