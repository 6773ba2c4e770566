#include "ops/linear/row_sums.h"

#include "base/format.h"
#include "ops/linear/linear_kernel.h"

namespace fathom {
namespace {

void expect_f32_matrix(const Tensor& x, const char* op, const char* name) {
  if (!x.defined() || x.dtype() != DType::kF32 || x.rank() != 2 || !x.is_contiguous() || x.row_count())
    fail("{}: {} must be dense f32 (rows, columns), all rows there, got {} {}", op, name, name_of(x.dtype()),
         to_string(x.shape()));
}

}  // namespace

Tensor transposed_product(Context& ctx, const Tensor& a, const Tensor& b) {
  expect_f32_matrix(a, "transposed_product", "a");
  expect_f32_matrix(b, "transposed_product", "b");
  if (a.dim(0) != b.dim(0)) fail("transposed_product: {} rows and {}", a.dim(0), b.dim(0));
  Tensor out = Tensor::empty(ctx, DType::kF32, {a.dim(1), b.dim(1)});
  on_device(ctx, [&](auto dev) { linear_dw_kernel(dev, ctx, a, b, DType::kF32, 0.0f, out); });
  return out;
}

Tensor sum_rows(Context& ctx, const Tensor& x) {
  expect_f32_matrix(x, "sum_rows", "x");
  Tensor out = Tensor::empty(ctx, DType::kF32, {x.dim(1)});
  on_device(ctx, [&](auto dev) { linear_db_kernel(dev, ctx, x, 0.0f, out); });
  return out;
}

}  // namespace fathom
