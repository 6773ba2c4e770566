#include "ops/rows/rms_norm.h"

#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/fill.h"

namespace fathom {

void rms_norm_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out);
void rms_norm_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out);
// d: gradient of out.
void rms_norm_dx_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                        const Tensor& d, Tensor& dx);
void rms_norm_dx_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                        const Tensor& d, Tensor& dx);
// Adds to d_weight. scratch: f32, as many as rms_norm_scratch() says, not initialised.
void rms_norm_dweight_kernel(CpuBackend dev, const Tensor& x, RmsNormParams params, const Tensor& d,
                             Tensor& scratch, Tensor& d_weight);
void rms_norm_dweight_kernel(CudaBackend dev, const Tensor& x, RmsNormParams params, const Tensor& d,
                             Tensor& scratch, Tensor& d_weight);
int64_t rms_norm_scratch(CpuBackend dev, const Tensor& x);
int64_t rms_norm_scratch(CudaBackend dev, const Tensor& x);

namespace {

void add_dweight(Context& ctx, const Tensor& x, RmsNormParams params, const Tensor& d, Tensor& sum) {
  on_device(ctx, [&](auto dev) {
    Tensor scratch = Tensor::empty(ctx, DType::kF32, {rms_norm_scratch(dev, x)});
    rms_norm_dweight_kernel(dev, x, params, d, scratch, sum);
  });
}

void rms_norm_gradient(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params,
                       const Tensor& d) {
  if (x.gradient()) {
    Tensor dx = gradient_like(ctx, x);
    on_device(ctx, [&](auto dev) { rms_norm_dx_kernel(dev, x, weight, params, d, dx); });
    accumulate(ctx, x, dx);
  }
  if (!weight.gradient()) return;
  Tensor sum = gradient_to_add_to(weight);
  if (sum) return add_dweight(ctx, x, params, d, sum);
  sum = Tensor::empty(ctx, DType::kF32, weight.shape());
  fill(ctx, sum, 0.0f);
  add_dweight(ctx, x, params, d, sum);
  accumulate(ctx, weight, sum);
}

}  // namespace

Tensor rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params) {
  expect_rows(x, "rms_norm", "x");
  expect(weight, DType::kF32, {x.dim(-1)}, "rms_norm", "weight");
  Tensor out = Tensor::empty(ctx, DType::kF32, x.shape()).counted_like(x);
  on_device(ctx, [&](auto dev) { rms_norm_kernel(dev, x, weight, params, out); });
  differentiate(ctx, {&x, &weight}, out,
                [=](Context& c, const Tensor& d) { rms_norm_gradient(c, x, weight, params, d); });
  return out;
}

}  // namespace fathom
