#include "ops/kernels/row_access.h"
#include "ops/linear/low_rank_kernel.h"
#include "quant/half.h"

namespace fathom {

void low_rank_product(CpuBackend dev, Context& ctx, const LowRankProduct& product, Tensor& out) {
  gemm(dev, ctx,
       {.layout = product.layout,
        .precision = Precision::kF32,
        .m = product.m(),
        .n = product.n(),
        .k = product.k(),
        .a = {product.left.raw(), product.left.dim(1), false},
        .b = {product.right.raw(), product.right.dim(1), false},
        .c = out.data<float>(),
        .c_stride = product.n(),
        .alpha = product.scale,
        .beta = product.beta});
}

void add_rounded_kernel(CpuBackend dev, const Tensor& w, const Tensor& more, Tensor& out) {
  const uint16_t* from = w.data<uint16_t>();
  const float* add = more.data<float>();
  uint16_t* to = out.data<uint16_t>();
  dev.pool.parallel_for(w.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = bf16_of_f32(f32_of_bf16(from[i]) + add[i]);
  });
}

}  // namespace fathom
