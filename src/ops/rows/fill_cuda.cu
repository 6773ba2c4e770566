#include "ops/rows/fill.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void fill_elements(float* out, int64_t count, float value) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = value;
}

}  // namespace

void fill_kernel(CudaBackend dev, Tensor& out, float value) {
  if (out.numel() == 0) return;
  fill_elements<<<blocks_for(out.numel(), kThreads), kThreads, 0, dev.handle.stream>>>(out.data<float>(),
                                                                                       out.numel(), value);
  check_launch("fill");
}

}  // namespace fathom
