#include "ops/linear/row_sums.h"

#include "base/format.h"
#include "ops/linear/linear_kernel.h"

namespace fathom {
namespace {

void expect_dense_matrix(const Tensor& x, const char* op, const char* name, bool bf16 = false) {
  if (!x.defined() || x.dtype() != (bf16 ? DType::kBF16 : DType::kF32) || x.rank() != 2 ||
      !x.is_contiguous() || x.row_count())
    fail("{}: {} must be dense f32 (rows, columns), all rows there, got {} {}", op, name, name_of(x.dtype()),
         to_string(x.shape()));
}

}  // namespace

Tensor transposed_product(Context& ctx, const Tensor& a, const Tensor& b) {
  expect_dense_matrix(a, "transposed_product", "a");
  const bool narrow = ctx.device() == Device::kCuda && a.dim(1) <= kFewOutputs;
  expect_dense_matrix(b, "transposed_product", "b", narrow && b.defined() && b.dtype() == DType::kBF16);
  if (a.dim(0) != b.dim(0)) fail("transposed_product: {} rows and {}", a.dim(0), b.dim(0));
  Tensor out = Tensor::empty(ctx, DType::kF32, {a.dim(1), b.dim(1)});
  on_device(ctx, [&](auto dev) { linear_dw_kernel(dev, ctx, a, b, DType::kF32, 0.0f, out); });
  return out;
}

Tensor sum_rows(Context& ctx, const Tensor& x) {
  expect_dense_matrix(x, "sum_rows", "x");
  Tensor out = Tensor::empty(ctx, DType::kF32, {x.dim(1)});
  on_device(ctx, [&](auto dev) { linear_db_kernel(dev, ctx, x, 0.0f, out); });
  return out;
}

}  // namespace fathom
