#include "ops/rows/dropout.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void dropout_kernel(CpuBackend dev, const Tensor& x, const DropoutParams& params, const Tensor& keys,
                    const Tensor& positions, Tensor& out);
void dropout_kernel(CudaBackend dev, const Tensor& x, const DropoutParams& params, const Tensor& keys,
                    const Tensor& positions, Tensor& out);

Tensor dropout(Context& ctx, const Tensor& x, const DropoutParams& params, const Tensor& keys,
               const Tensor& positions) {
  expect_rows(x, "dropout", "x");
  if (x.rank() != 2) fail("dropout: x must be f32 (rows, d), got {}", to_string(x.shape()));
  if (!(params.rate >= 0 && params.rate < 1))
    fail("dropout: the rate must be at least 0 and below 1, got {}", params.rate);
  expect(keys, DType::kI32, {x.dim(0)}, "dropout", "keys");
  expect(positions, DType::kI32, {x.dim(0)}, "dropout", "positions");
  Tensor out = gradient_like(ctx, x);
  on_device(ctx, [&](auto dev) { dropout_kernel(dev, x, params, keys, positions, out); });
  const Tensor shaped = without_values(x);
  differentiate(ctx, {&x}, out, [=](Context& c, const Tensor& d) {
    Tensor dx = gradient_like(c, shaped);
    on_device(c, [&](auto dev) { dropout_kernel(dev, d.counted_like(shaped), params, keys, positions, dx); });
    accumulate(c, shaped, dx);
  });
  return out;
}

}  // namespace fathom
