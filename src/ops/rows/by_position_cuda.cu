#include "ops/kernels/row_set_cuda.cuh"
#include "ops/rows/by_position.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

__global__ void compare(const int32_t* positions, const int32_t* count, int64_t rows, int64_t limit,
                        float* out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= rows || (count && r >= *count)) return;
  out[r] = positions[r] < limit ? 1.0f : 0.0f;
}

__global__ void store(DeviceRows rows, const float* values, const int32_t* sequence, const int32_t* positions,
                      int64_t sequences, int64_t places, float* table, int32_t* fault) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows.count()) return;
  const int64_t s = sequence[rows[i]], p = positions[rows[i]];
  if (s < 0 || s >= sequences || p < 0 || p >= places) {
    report_fault(fault, CudaFault::kSequence);
    return;
  }
  table[s * places + p] = values[i];
}

}  // namespace

void before_position_kernel(CudaBackend dev, const Tensor& positions, int64_t limit, Tensor& out) {
  const int64_t rows = positions.dim(0);
  if (rows == 0) return;
  compare<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      positions.data<int32_t>(), positions.row_count(), rows, limit, out.data<float>());
  check_launch("before_position");
}

void store_by_position_kernel(CudaBackend dev, Tensor& table, const Tensor& values, const RowSet& rows,
                              const Tensor& sequence, const Tensor& positions) {
  if (rows.capacity() == 0) return;
  store<<<blocks_for(rows.capacity(), kThreads), kThreads, 0, dev.handle.stream>>>(
      DeviceRows(rows), values.data<float>(), sequence.data<int32_t>(), positions.data<int32_t>(),
      table.dim(0), table.dim(1), table.data<float>(), dev.handle.fault);
  check_launch("store_by_position");
}

}  // namespace fathom
