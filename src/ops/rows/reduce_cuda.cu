#include <algorithm>

#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/reduce.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

// A block per row: thread t adds elements t, t + threads, …; the number of threads depends on the width
// alone.
__global__ void mean_of_rows(DeviceFloatRows x, float* out) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float* in = x.data + row * x.step;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x) sum += in[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[row] = sum / static_cast<float>(x.width);
}

}  // namespace

void mean_columns_kernel(CudaBackend dev, const Tensor& x, Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  const int64_t threads = std::clamp<int64_t>(rows.width / 4 / kWarp * kWarp, kWarp, 512);
  mean_of_rows<<<blocks_for(rows.rows, 1), static_cast<unsigned int>(threads), 0, dev.handle.stream>>>(
      rows, out.data<float>());
  check_launch("mean_columns");
}

}  // namespace fathom
