#include "ops/kernels/row_set_cuda.cuh"
#include "ops/rows/gather_rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per row of the capacity; rows of `out` past the count are not written. Both types have four bytes.
__global__ void copy_kept(const int32_t* x, int64_t step, int64_t width, DeviceRows kept, int32_t* out) {
  const int64_t i = blockIdx.x;
  if (i >= kept.count()) return;
  const int32_t* from = x + kept[i] * step;
  for (int64_t j = threadIdx.x; j < width; j += kThreads) out[i * width + j] = from[j];
}

}  // namespace

void gather_rows_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, Tensor& out) {
  const DeviceRows rows(kept);
  const int64_t width = x.rank() == 1 ? 1 : x.dim(1);
  if (rows.capacity == 0) return;
  copy_kept<<<blocks_for(rows.capacity, 1), kThreads, 0, dev.handle.stream>>>(
      x.data<int32_t>(), x.stride(0), width, rows, out.data<int32_t>());
  check_launch("gather_rows");
}

}  // namespace fathom
