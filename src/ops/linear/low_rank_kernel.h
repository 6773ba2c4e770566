// Between low_rank.cc and its backends: operands already checked.
#pragma once

#include "ops/linear/gemm.h"
#include "ops/linear/low_rank.h"
#include "tensor/tensor.h"

namespace fathom {

// scale · op(left) · op(right) + beta · out, all f32 and dense.
struct LowRankProduct {
  GemmLayout layout;
  const Tensor &left, &right;
  float scale, beta;

  int64_t m() const { return layout == GemmLayout::kTN ? left.dim(1) : left.dim(0); }
  int64_t n() const { return layout == GemmLayout::kNT ? right.dim(0) : right.dim(1); }
  int64_t k() const { return layout == GemmLayout::kTN ? left.dim(0) : left.dim(1); }
};

void low_rank_product(CpuBackend dev, Context& ctx, const LowRankProduct& product, Tensor& out);
void low_rank_product(CudaBackend dev, Context& ctx, const LowRankProduct& product, Tensor& out);

inline constexpr int64_t kMergeBlock = 32;  // elements of a block of q4_1

// out = w + more, rounded. w, out: f32 or bf16, both alike; more: f32.
void add_rounded_kernel(CpuBackend dev, const Tensor& w, const Tensor& more, MergeRounding rounding,
                        Tensor& out);
void add_rounded_kernel(CudaBackend dev, const Tensor& w, const Tensor& more, MergeRounding rounding,
                        Tensor& out);

}  // namespace fathom
