#include "ops/rows/rms_norm.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/fill.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "ops/rows/rms_norm_kernel.h"

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

namespace {

void add_dweight(Context& ctx, const Tensor& x, RmsNormParams params, const Tensor& d, Tensor& sum) {
  on_device(ctx, [&](auto dev) {
    Tensor scratch = Tensor::empty(ctx, DType::kF32, {rms_norm_scratch(dev, x)});
    rms_norm_dweight_kernel(dev, x, params, d, scratch, sum);
  });
}

// Where the gradient of x can be added to in some of its rows.
Tensor gradient_in_place(Context& ctx, const Tensor& x) {
  if (Tensor sum = gradient_to_add_to(x)) return sum;
  const Tensor arrived = x.gradient()->value;
  if (arrived) return affine(ctx, arrived, 1.0f, 0.0f);
  Tensor zeros = gradient_like(ctx, x);
  fill(ctx, zeros, 0.0f);
  return zeros;
}

// The gradient that x already has is read and written once: it is the residual stream's, the widest there is.
void bf16_gradient(Context& ctx, const NormedRows& of, const Tensor& d) {
  if constexpr (kHasCuda) {
    expect(d, DType::kBF16, of.y.shape(), "rms_norm", "the gradient");
    const Tensor &x = of.x, &weight = of.weight;
    Tensor arrived, dx, rounded, d_weight = weight.gradient() ? gradient_to_add_to(weight) : Tensor();
    const bool fresh = weight.gradient() && !d_weight;
    if (fresh) d_weight = Tensor::empty(ctx, DType::kF32, weight.shape());
    if (fresh) fill(ctx, d_weight, 0.0f);
    if (x.gradient()) {
      dx = of.kept.is_all() ? gradient_to_add_to(x)
                            : gradient_in_place(ctx, x);  // before another handle to it
      if (!dx) dx = gradient_like(ctx, x);
      arrived = of.kept.is_all() ? x.gradient()->value : dx;
      if (of.kept.is_all() && x.gradient()->rounds)
        rounded = Tensor::empty(ctx, DType::kBF16, x.shape()).counted_like(x);
    }
    Tensor scratch = Tensor::empty(ctx, DType::kF32, {rms_norm_bf16_scratch(of.y)});
    rms_norm_bf16_gradient_kernel(ctx.cuda(), of, d, arrived, dx, rounded, scratch, d_weight);
    if (x.gradient()) {
      x.gradient()->value = dx;
      x.gradient()->own = true;
      x.gradient()->rounded = rounded;
    }
    if (fresh) accumulate(ctx, weight, d_weight);
  }
}

Tensor norm_to_bf16(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& weight,
                    RmsNormParams params) {
  require(ctx.device() == Device::kCuda && x.rank() == 2 && x.stride(0) % 4 == 0 && x.dim(1) % 4 == 0 &&
              x.dim(1) <= kWidestBf16Norm,
          "rms_norm: bf16 needs a GPU and rows of a multiple of 4 up to {} elements, got {} on {}",
          kWidestBf16Norm, to_string(x.shape()), name_of(ctx.device()));
  if (kept.is_all() && kept.capacity() != x.dim(0))
    fail("rms_norm: {} rows kept of {}", kept.capacity(), x.dim(0));
  Tensor y = Tensor::empty(ctx, DType::kBF16, {kept.capacity(), x.dim(1)});
  y = kept.is_all() ? y.counted_like(x) : y.counted_by(kept.count());
  Tensor inverse = Tensor::empty(ctx, DType::kF32, {kept.capacity()});
  if constexpr (kHasCuda) rms_norm_bf16_kernel(ctx.cuda(), x, kept, weight, params, y, inverse);
  Tensor out = y;
  differentiate(ctx, {&x, &weight}, out,
                [of = NormedRows{without_values(x), kept, weight, params, y, inverse}](
                    Context& c, const Tensor& d) { bf16_gradient(c, of, d); });
  return out;
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

Tensor rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params, DType type) {
  expect_rows(x, "rms_norm", "x");
  expect(weight, DType::kF32, {x.dim(-1)}, "rms_norm", "weight");
  if (type == DType::kBF16) return norm_to_bf16(ctx, x, RowSet::all(x.dim(0)), weight, params);
  Tensor out = Tensor::empty(ctx, DType::kF32, x.shape()).counted_like(x);
  on_device(ctx, [&](auto dev) { rms_norm_kernel(dev, x, weight, params, out); });
  differentiate(ctx, {&x, &weight}, out,
                [=](Context& c, const Tensor& d) { rms_norm_gradient(c, x, weight, params, d); });
  return out;
}

Tensor rms_norm_rows(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& weight,
                     RmsNormParams params, DType type) {
  if (type == DType::kF32 || kept.is_none())
    return rms_norm(ctx, gather_rows(ctx, x, kept), weight, params, type);
  expect_rows(x, "rms_norm", "x");
  expect(weight, DType::kF32, {x.dim(-1)}, "rms_norm", "weight");
  return norm_to_bf16(ctx, x, kept, weight, params);
}

}  // namespace fathom
