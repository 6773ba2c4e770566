#include "ops/rows/fill.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void write_all(int64_t elements, float value, float* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < elements) out[i] = value;
}

}  // namespace

void fill_kernel(CudaBackend dev, Tensor& out, float value) {
  if (out.numel() == 0) return;
  write_all<<<blocks_for(out.numel(), kThreads), kThreads, 0, dev.handle.stream>>>(out.numel(), value,
                                                                                   out.data<float>());
  check_launch("fill");
}

}  // namespace fathom
