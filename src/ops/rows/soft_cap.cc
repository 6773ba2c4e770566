#include "ops/rows/soft_cap.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void soft_cap_kernel(CpuBackend dev, const Tensor& x, float cap, Tensor& out);
void soft_cap_kernel(CudaBackend dev, const Tensor& x, float cap, Tensor& out);
// capped: soft_cap's output.
void soft_cap_gradient_kernel(CpuBackend dev, const Tensor& capped, float cap, const Tensor& d, Tensor& dx);
void soft_cap_gradient_kernel(CudaBackend dev, const Tensor& capped, float cap, const Tensor& d, Tensor& dx);

Tensor soft_cap(Context& ctx, const Tensor& x, float cap) {
  expect_rows(x, "soft_cap", "x");
  if (!(cap > 0)) fail("soft_cap: cap must be above 0, got {}", cap);
  Tensor out = Tensor::empty(ctx, DType::kF32, x.shape()).counted_like(x);
  on_device(ctx, [&](auto dev) { soft_cap_kernel(dev, x, cap, out); });
  differentiate(ctx, {&x}, out, [cap, capped = out, x = without_values(x)](Context& c, const Tensor& d) {
    Tensor dx = gradient_like(c, x);
    on_device(c, [&](auto dev) { soft_cap_gradient_kernel(dev, capped, cap, d, dx); });
    accumulate(c, x, dx);
  });
  return out;
}

}  // namespace fathom
