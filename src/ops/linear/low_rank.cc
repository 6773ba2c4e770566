#include "ops/linear/low_rank.h"

#include "base/format.h"
#include "ops/linear/low_rank_kernel.h"

namespace fathom {
namespace {

void check_factors(const Tensor& matrix, DType type, const Tensor& a, const Tensor& b, const char* op) {
  const Shape shape{b.defined() ? b.dim(0) : 0, a.defined() ? a.dim(-1) : 0};
  expect(a, DType::kF32, {a.defined() ? a.dim(0) : 0, shape[1]}, op, "a");
  expect(b, DType::kF32, {shape[0], a.dim(0)}, op, "b");
  expect(matrix, type, shape, op, "the matrix");
  require(matrix.is_contiguous() && a.is_contiguous() && b.is_contiguous(), "{}: the matrices must be dense",
          op);
}

}  // namespace

void merge_low_rank(Context& ctx, const Tensor& w, const Tensor& a, const Tensor& b, float scale,
                    MergeRounding rounding, Tensor& out) {
  const DType type = w.dtype() == DType::kF32 ? DType::kF32 : DType::kBF16;
  check_factors(w, type, a, b, "merge_low_rank");
  check_factors(out, type, a, b, "merge_low_rank");
  require(rounding == MergeRounding::kNone || w.dim(1) % kMergeBlock == 0,
          "merge_low_rank: rows of {} elements are no whole blocks of {}", w.dim(1), kMergeBlock);
  Tensor product = Tensor::empty(ctx, DType::kF32, w.shape());
  on_device(ctx, [&](auto dev) {
    low_rank_product(dev, ctx, {GemmLayout::kNN, b, a, scale, 0.0f}, product);
    add_rounded_kernel(dev, w, product, rounding, out);
  });
}

void split_low_rank(Context& ctx, const Tensor& dw, const Tensor& a, const Tensor& b, float scale, Tensor& da,
                    Tensor& db) {
  check_factors(dw, DType::kF32, a, b, "split_low_rank");
  check_factors(dw, DType::kF32, da, db, "split_low_rank");
  on_device(ctx, [&](auto dev) {
    low_rank_product(dev, ctx, {GemmLayout::kTN, b, dw, scale, 1.0f}, da);
    low_rank_product(dev, ctx, {GemmLayout::kNT, dw, a, scale, 1.0f}, db);
  });
}

}  // namespace fathom
