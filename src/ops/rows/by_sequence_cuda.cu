#include "ops/kernels/row_set_cuda.cuh"
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

void expand_by_sequence_kernel(CudaBackend dev, const Tensor& s, const Tensor& sequence, Tensor& out) {
  const int64_t rows = sequence.dim(0);
  if (rows == 0) return;
  expand<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      s.data<float>(), sequence.data<int32_t>(), sequence.row_count(), rows, s.dim(0), out.data<float>(),
      dev.handle.fault);
  check_launch("expand_by_sequence");
}

}  // namespace fathom
