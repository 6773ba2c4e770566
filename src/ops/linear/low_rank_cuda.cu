#include <cuda_fp16.h>

#include "ops/kernels/bf16.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/low_rank_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

// A warp holds a block of q4_1, a lane an element: the steps of encode_q4_1 and unpack_q4_1, rounded where
// they round.
__device__ float rounded_to_q4_1(float x) {
  const float low = -warp_max(-x), scale = (warp_max(x) - low) / 15.0f;
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  const float level = fminf(truncf(__fadd_rn(__fmul_rn(x - low, inverse), 0.5f)), 15.0f);
  return __fadd_rn(__fmul_rn(__half2float(__float2half_rn(scale)), level),
                   __half2float(__float2half_rn(low)));
}

// Blocks of 32 elements are whole warps.
template <class T, MergeRounding kRounding>
__global__ void add_rounded(const T* w, const float* more, int64_t elements, T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= elements) return;
  const float sum = to_float(w[i]) + more[i];
  store(out + i, kRounding == MergeRounding::kQ4_1 ? rounded_to_q4_1(sum) : sum);
}

template <class T, MergeRounding kRounding>
void launch(CudaBackend dev, const Tensor& w, const Tensor& more, Tensor& out) {
  add_rounded<T, kRounding><<<blocks_for(w.numel(), kThreads), kThreads, 0, dev.handle.stream>>>(
      w.data<T>(), more.data<float>(), w.numel(), out.data<T>());
  check_launch("merge_low_rank");
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

void add_rounded_kernel(CudaBackend dev, const Tensor& w, const Tensor& more, MergeRounding rounding,
                        Tensor& out) {
  if (w.numel() == 0) return;
  const bool f32 = w.dtype() == DType::kF32;
  if (rounding == MergeRounding::kNone)
    f32 ? launch<float, MergeRounding::kNone>(dev, w, more, out)
        : launch<Bf16, MergeRounding::kNone>(dev, w, more, out);
  else
    f32 ? launch<float, MergeRounding::kQ4_1>(dev, w, more, out)
        : launch<Bf16, MergeRounding::kQ4_1>(dev, w, more, out);
}

}  // namespace fathom
