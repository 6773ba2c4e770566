#include <array>

#include "ops/kernels/row_access.h"
#include "ops/linear/low_rank_kernel.h"
#include "quant/formats.h"
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

namespace {

float value_of(float x) {
  return x;
}
float value_of(uint16_t bf16) {
  return f32_of_bf16(bf16);
}
void store(float x, float& to) {
  to = x;
}
void store(float x, uint16_t& to) {
  to = bf16_of_f32(x);
}

template <class T>
void add_rounded(CpuBackend dev, const Tensor& w, const Tensor& more, MergeRounding rounding, Tensor& out) {
  const T* from = w.data<T>();
  const float* add = more.data<float>();
  T* to = out.data<T>();
  if (rounding == MergeRounding::kNone) {
    dev.pool.parallel_for(w.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) store(value_of(from[i]) + add[i], to[i]);
    });
    return;
  }
  constexpr size_t kBlockBytes = 20;  // of q4_1: an f16 scale, an f16 minimum, 32 levels of 4 bits
  const auto round_blocks = [&](int64_t begin, int64_t end) {
    std::array<float, kMergeBlock> values;
    std::array<std::byte, kBlockBytes> block;
    for (int64_t i = begin * kMergeBlock; i < end * kMergeBlock; i += kMergeBlock) {
      for (int64_t j = 0; j < kMergeBlock; ++j)
        values[static_cast<size_t>(j)] = value_of(from[i + j]) + add[i + j];
      encode_row(DType::kQ4_1, values.data(), block.data(), kMergeBlock);
      decode_row(DType::kQ4_1, block.data(), values.data(), kMergeBlock);
      for (int64_t j = 0; j < kMergeBlock; ++j) store(values[static_cast<size_t>(j)], to[i + j]);
    }
  };
  dev.pool.parallel_for(w.numel() / kMergeBlock, kElementGrain / kMergeBlock, round_blocks);
}

}  // namespace

void add_rounded_kernel(CpuBackend dev, const Tensor& w, const Tensor& more, MergeRounding rounding,
                        Tensor& out) {
  if (w.dtype() == DType::kF32) return add_rounded<float>(dev, w, more, rounding, out);
  add_rounded<uint16_t>(dev, w, more, rounding, out);
}

}  // namespace fathom
