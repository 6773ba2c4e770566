#include "ops/rows/write_numbers.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void write_each(const int2* pairs, int64_t count, int32_t* list) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) list[pairs[i].x] = pairs[i].y;
}

}  // namespace

void write_numbers_kernel(CudaBackend dev, const Tensor& pairs, Tensor& list) {
  write_each<<<blocks_for(pairs.dim(0), kThreads), kThreads, 0, dev.handle.stream>>>(
      static_cast<const int2*>(pairs.raw()), pairs.dim(0), list.data<int32_t>());
  check_launch("write_numbers");
}

}  // namespace fathom
