#include "ops/kernels/row_set_cuda.cuh"
#include "ops/rows/mask_rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per row.
__global__ void mask_kept(DeviceFloatRows x, DeviceRows kept, float* out) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const bool runs = find_kept(kept, row) >= 0;
  for (int64_t i = threadIdx.x; i < x.width; i += kThreads)
    out[row * x.width + i] = runs ? x.data[row * x.step + i] : 0.0f;
}

}  // namespace

void mask_rows_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  mask_kept<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(rows, DeviceRows(kept),
                                                                          out.data<float>());
  check_launch("mask_rows");
}

}  // namespace fathom
