#include <bit>

#include "ops/rows/fill.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void fill_elements(float* out, int64_t elements, float value) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < elements) out[i] = value;
}

}  // namespace

void fill_kernel(CudaBackend dev, Tensor& out, float value) {
  const int64_t elements = out.numel();
  if (elements == 0) return;
  if (std::bit_cast<uint32_t>(value) == 0) {
    cuda_check(cudaMemsetAsync(out.raw(), 0, static_cast<size_t>(out.nbytes()), dev.handle.stream), "fill");
    return;
  }
  fill_elements<<<blocks_for(elements, kThreads), kThreads, 0, dev.handle.stream>>>(out.data<float>(),
                                                                                    elements, value);
  check_launch("fill");
}

}  // namespace fathom
