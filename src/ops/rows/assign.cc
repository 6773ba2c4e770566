#include "ops/rows/assign.h"

#include "base/format.h"

namespace fathom {

void assign_kernel(CpuBackend dev, const Tensor& from, Tensor& to);
void assign_kernel(CudaBackend dev, const Tensor& from, Tensor& to);

void assign(Context& ctx, Tensor& to, const Tensor& from) {
  if (ctx.tape()) {
    to = from;
    return;
  }
  expect(from, to.dtype(), to.shape(), "assign", "from");
  if (!to.is_contiguous() || !from.is_contiguous()) fail("assign: both tensors must be dense");
  if (to.raw() == from.raw()) return;
  on_device(ctx, [&](auto dev) { assign_kernel(dev, from, to); });
}

}  // namespace fathom
