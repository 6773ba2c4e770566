#include "ops/rows/scale_rows.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/row_products.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void scale_rows_kernel(CpuBackend dev, const Tensor& x, const Tensor& gate, Tensor& out);
void scale_rows_kernel(CudaBackend dev, const Tensor& x, const Tensor& gate, Tensor& out);

namespace {

void scale_rows_gradient(Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& d) {
  if (x.gradient()) {
    Tensor dx = gradient_like(ctx, x);
    on_device(ctx, [&](auto dev) { scale_rows_kernel(dev, d.counted_like(x), gate, dx); });
    accumulate(ctx, x, dx);
  }
  if (!gate.gradient()) return;
  Tensor d_gate = Tensor::empty(ctx, DType::kF32, gate.shape()).counted_like(x);
  on_device(ctx, [&](auto dev) {
    gate.rank() == 2 ? scale_rows_kernel(dev, x, d, d_gate) : row_products_kernel(dev, x, d, d_gate);
  });
  accumulate(ctx, gate, d_gate);
}

}  // namespace

Tensor scale_rows(Context& ctx, const Tensor& x, const Tensor& gate) {
  expect_rows(x, "scale_rows", "x");
  if (x.rank() != 2) fail("scale_rows: x must be f32 (rows, d), got {}", to_string(x.shape()));
  expect_rows(gate, "scale_rows", "gate");
  if (gate.shape() != Shape{x.dim(0)} && gate.shape() != x.shape())
    fail("scale_rows: gate must be ({}) or {}, got {}", x.dim(0), to_string(x.shape()),
         to_string(gate.shape()));
  Tensor out = gradient_like(ctx, x);
  on_device(ctx, [&](auto dev) { scale_rows_kernel(dev, x, gate, out); });
  differentiate(ctx, {&x, &gate}, out,
                [=](Context& c, const Tensor& d) { scale_rows_gradient(c, x, gate, d); });
  return out;
}

}  // namespace fathom
