#include "ops/rows/rms_norm.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/fill.h"

namespace fathom {

void rms_norm_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out);
void rms_norm_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out);
// d: gradient of out, f32 or (on a GPU) bf16.
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

// Both gradients in one pass over the rows, rms_norm_bf16_cuda.cu. d: bf16. dx: undefined, or f32;
// dx = arrived + the gradient of x (arrived undefined: 0), and `dx` may be `arrived`. d_weight: undefined, or
// added to. scratch: as rms_norm_bf16_scratch() says.
void rms_norm_bf16_gradient_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight,
                                   RmsNormParams params, const Tensor& d, const Tensor& arrived, Tensor& dx,
                                   Tensor& scratch, Tensor& d_weight);
int64_t rms_norm_bf16_scratch(const Tensor& x);

namespace {

void add_dweight(Context& ctx, const Tensor& x, RmsNormParams params, const Tensor& d, Tensor& sum) {
  on_device(ctx, [&](auto dev) {
    Tensor scratch = Tensor::empty(ctx, DType::kF32, {rms_norm_scratch(dev, x)});
    rms_norm_dweight_kernel(dev, x, params, d, scratch, sum);
  });
}

// The gradient that x already has is read and written once: it is the residual stream's, the widest there is.
void bf16_gradient(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params,
                   const Tensor& d) {
  if constexpr (kHasCuda) {
    Tensor arrived, dx, d_weight = weight.gradient() ? gradient_to_add_to(weight) : Tensor();
    const bool fresh = weight.gradient() && !d_weight;
    if (fresh) d_weight = Tensor::empty(ctx, DType::kF32, weight.shape());
    if (fresh) fill(ctx, d_weight, 0.0f);
    if (x.gradient()) {
      dx = gradient_to_add_to(x);  // before another handle to it
      if (!dx) dx = gradient_like(ctx, x);
      arrived = x.gradient()->value;
    }
    Tensor scratch = Tensor::empty(ctx, DType::kF32, {rms_norm_bf16_scratch(x)});
    rms_norm_bf16_gradient_kernel(ctx.cuda(), x, weight, params, d, arrived, dx, scratch, d_weight);
    if (x.gradient()) {
      x.gradient()->value = dx;
      x.gradient()->own = true;
    }
    if (fresh) accumulate(ctx, weight, d_weight);
  }
}

void rms_norm_gradient(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params,
                       const Tensor& d) {
  if (d.dtype() == DType::kBF16) return bf16_gradient(ctx, x, weight, params, d);
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

Tensor rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params, DType type) {
  expect_rows(x, "rms_norm", "x");
  expect(weight, DType::kF32, {x.dim(-1)}, "rms_norm", "weight");
  const int64_t step = x.rank() == 2 ? x.stride(0) : x.dim(-1);
  require(type == DType::kF32 || (type == DType::kBF16 && ctx.device() == Device::kCuda && step % 4 == 0 &&
                                  x.dim(-1) % 4 == 0 && x.dim(-1) <= kWidestBf16Norm),
          "rms_norm: the result must be f32, or on a GPU bf16 of a multiple of 4 up to {} elements, got {} "
          "{} on {}",
          kWidestBf16Norm, name_of(type), x.dim(-1), name_of(ctx.device()));
  Tensor out = Tensor::empty(ctx, type, x.shape()).counted_like(x);
  on_device(ctx, [&](auto dev) { rms_norm_kernel(dev, x, weight, params, out); });
  differentiate(ctx, {&x, &weight}, out,
                [=](Context& c, const Tensor& d) { rms_norm_gradient(c, x, weight, params, d); });
  return out;
}

}  // namespace fathom
