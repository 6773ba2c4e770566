#include "ops/rms_norm.h"

#include "ops/row_access.h"

namespace fathom {

void rms_norm_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out);
void rms_norm_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out);

Tensor rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params) {
  expect_rows(x, "rms_norm", "x");
  expect(weight, DType::kF32, {x.dim(-1)}, "rms_norm", "weight");
  Tensor out = Tensor::empty(ctx, DType::kF32, x.shape()).counted_by(x.row_count());
  on_device(ctx, [&](auto dev) { rms_norm_kernel(dev, x, weight, params, out); });
  return out;
}

}  // namespace fathom
