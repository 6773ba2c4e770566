#include "ops/kernels/warp.cuh"
#include "ops/optimizer/gradient_norm_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256, kThreadsOfTotal = 1024;

// A block per kNormBlock elements: each thread adds up those that are kThreads apart.
__global__ void norm_blocks(const float* x, int64_t size, double* sums) {
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormBlock;
  const int64_t end = begin + kNormBlock < size ? begin + kNormBlock : size;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto value = static_cast<double>(x[i]);
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// One block.
__global__ void norm_total(const double* sums, int64_t blocks, int32_t* words) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreadsOfTotal) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  words[0] = __double2loint(sum);
  words[1] = __double2hiint(sum);
}

}  // namespace

void gradient_norm_kernel(CudaBackend dev, const Tensor& x, Tensor& sums, Tensor& out) {
  const int64_t blocks = sums.dim(0);
  if (blocks > 0) {
    norm_blocks<<<static_cast<unsigned int>(blocks), kThreads, 0, dev.handle.stream>>>(
        x.data<float>(), x.numel(), sums.data<double>());
    check_launch("gradient_norm");
  }
  norm_total<<<1, kThreadsOfTotal, 0, dev.handle.stream>>>(sums.data<double>(), blocks, out.data<int32_t>());
  check_launch("gradient_norm");
}

}  // namespace fathom
