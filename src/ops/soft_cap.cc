#include "ops/soft_cap.h"

#include "base/format.h"
#include "ops/row_access.h"

namespace fathom {

void soft_cap_kernel(CpuBackend dev, const Tensor& x, float cap, Tensor& out);
void soft_cap_kernel(CudaBackend dev, const Tensor& x, float cap, Tensor& out);

Tensor soft_cap(Context& ctx, const Tensor& x, float cap) {
  expect_rows(x, "soft_cap", "x");
  if (!(cap > 0)) fail("soft_cap: cap must be above 0, got {}", cap);
  Tensor out = Tensor::empty(ctx, DType::kF32, x.shape()).counted_by(x.row_count());
  on_device(ctx, [&](auto dev) { soft_cap_kernel(dev, x, cap, out); });
  return out;
}

}  // namespace fathom
