#include "ops/rows/mask_rows.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/row_products.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void mask_rows_kernel(CpuBackend dev, const Tensor& x, const RowSet& kept, Tensor& out);
void mask_rows_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, Tensor& out);

namespace {

void expect_matrix(const Tensor& x, const char* op) {
  expect_rows(x, op, "x");
  if (x.rank() != 2) fail("{}: x must be f32 (rows, d), got {}", op, to_string(x.shape()));
}

void pass_to_score(Context& ctx, const Tensor& x, const Tensor& score, const Tensor& d) {
  if (!score.gradient()) return;
  Tensor d_score = Tensor::empty(ctx, DType::kF32, score.shape()).counted_like(x);
  on_device(ctx, [&](auto dev) { row_products_kernel(dev, x, d, d_score); });
  accumulate(ctx, score, d_score);
}

void mask_rows_gradient(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& score,
                        const Tensor& d) {
  pass_to_score(ctx, x, score, d);
  if (!x.gradient()) return;
  if (kept.is_all()) return accumulate(ctx, x, d);
  Tensor dx = gradient_like(ctx, x);
  on_device(ctx, [&](auto dev) { mask_rows_kernel(dev, d.counted_like(x), kept, dx); });
  accumulate(ctx, x, dx);
}

}  // namespace

Tensor mask_rows(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& score) {
  expect_matrix(x, "mask_rows");
  if (score) expect(score, DType::kF32, {x.dim(0)}, "mask_rows", "score");
  if (kept.is_all() && kept.capacity() != x.dim(0))
    fail("mask_rows: {} rows kept of {}", kept.capacity(), x.dim(0));
  Tensor out = x;
  if (!kept.is_all()) {
    out = gradient_like(ctx, x);
    on_device(ctx, [&](auto dev) { mask_rows_kernel(dev, x, kept, out); });
  }
  // The values are needed only where a score learns.
  const Tensor saved = score.gradient() ? x : without_values(x);
  differentiate(ctx, {&x, &score}, out,
                [saved, kept, score = without_values(score)](Context& c, const Tensor& d) {
                  mask_rows_gradient(c, saved, kept, score, d);
                });
  return out;
}

Tensor scale_through(Context& ctx, const Tensor& x, const Tensor& p) {
  expect_matrix(x, "scale_through");
  expect(p, DType::kF32, {x.dim(0)}, "scale_through", "p");
  Tensor out = x;
  differentiate(ctx, {&x, &p}, out, [x, p = without_values(p)](Context& c, const Tensor& d) {
    pass_to_score(c, x, p, d);
    accumulate(c, x, d);
  });
  return out;
}

}  // namespace fathom
