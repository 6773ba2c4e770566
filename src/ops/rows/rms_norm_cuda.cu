#include <algorithm>

#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/rms_norm.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

// A block per row: thread t squares elements t, t + threads, …; the number of threads depends on the width
// alone.
__global__ void rms_norm_rows(DeviceFloatRows x, const float* weight, RmsNormParams params, float* out) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float* in = x.data + row * x.step;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x) sum = fmaf(in[i], in[i], sum);
  const float mean = block_sum(sum) / static_cast<float>(x.width);
  const float inverse = 1.0f / sqrtf(mean + params.eps);
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x) {
    out[row * x.width + i] = in[i] * inverse * (weight[i] + params.weight_offset);
  }
}

}  // namespace

void rms_norm_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  const int64_t threads = std::clamp<int64_t>(rows.width / 4 / kWarp * kWarp, kWarp, 512);
  rms_norm_rows<<<blocks_for(rows.rows, 1), static_cast<unsigned int>(threads), 0, dev.handle.stream>>>(
      rows, weight.data<float>(), params, out.data<float>());
  check_launch("rms_norm");
}

}  // namespace fathom
