#include "ops/rows/divide.h"

#include "base/format.h"

namespace fathom {

void divide_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void divide_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out);

Tensor divide(Context& ctx, const Tensor& a, const Tensor& b) {
  expect(a, DType::kF32, a.shape(), "divide", "a");
  expect(b, DType::kF32, a.shape(), "divide", "b");
  if (!a.is_contiguous() || !b.is_contiguous() || a.row_count() || b.row_count())
    fail("divide: both tensors must be dense, with every row there");
  Tensor out = Tensor::empty(ctx, DType::kF32, a.shape());
  on_device(ctx, [&](auto dev) { divide_kernel(dev, a, b, out); });
  return out;
}

}  // namespace fathom
