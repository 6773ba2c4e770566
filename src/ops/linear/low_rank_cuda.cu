#include "ops/kernels/bf16.cuh"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/low_rank_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void add_rounded(const Bf16* w, const float* more, int64_t elements, Bf16* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const float sum = unpack_bf16(w[i], 0) + more[i];
  out[i] = static_cast<Bf16>(pack_bf16(sum, 0.0f));
}

}  // namespace

void low_rank_product(CudaBackend dev, Context&, const LowRankProduct& product, Tensor& out) {
  dev.counters.add({.madds = static_cast<uint64_t>(product.m() * product.n() * product.k())});
  cuda_gemm(dev, {.layout = product.layout,
                  .m = product.m(),
                  .n = product.n(),
                  .k = product.k(),
                  .a = {product.left.raw(), product.left.dim(1), false},
                  .b = {product.right.raw(), product.right.dim(1), false},
                  .c = out.raw(),
                  .c_stride = product.n(),
                  .alpha = product.scale,
                  .beta = product.beta});
}

void add_rounded_kernel(CudaBackend dev, const Tensor& w, const Tensor& more, Tensor& out) {
  if (w.numel() == 0) return;
  add_rounded<<<blocks_for(w.numel(), kThreads), kThreads, 0, dev.handle.stream>>>(
      w.data<Bf16>(), more.data<float>(), w.numel(), out.data<Bf16>());
  check_launch("merge_low_rank");
}

}  // namespace fathom
