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

void expect_bf16(const char* op, const Context& ctx, const Tensor& x) {
  require(ctx.device() == Device::kCuda && x.rank() == 2 && x.stride(0) % 4 == 0 && x.dim(1) % 4 == 0 &&
              x.dim(1) <= kWidestBf16Norm,
          "{}: bf16 needs a GPU and rows of a multiple of 4 up to {} elements, got {} on {}", op,
          kWidestBf16Norm, to_string(x.shape()), name_of(ctx.device()));
}

Tensor norm_to_bf16(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& weight,
                    RmsNormParams params) {
  expect_bf16("rms_norm", ctx, x);
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

// Where a gradient adds up; `fresh` where that is new memory, of zeros, which accumulate() then gets.
Tensor sum_for(Context& ctx, const Tensor& x, bool& fresh) {
  fresh = false;
  if (!x.gradient()) return {};
  if (Tensor sum = gradient_to_add_to(x)) return sum;
  fresh = true;
  Tensor zeros = Tensor::empty(ctx, DType::kF32, x.shape());
  fill(ctx, zeros, 0.0f);
  return zeros;
}

void routed_gradient(Context& ctx, const RoutedNorm& of, const Tensor& d, const Tensor& d_logit) {
  if constexpr (kHasCuda) {
    const Tensor &x = of.norm.x, &weight = of.norm.weight;
    if (d) expect(d, DType::kBF16, of.norm.y.shape(), "rms_norm_routed", "the gradient");
    bool fresh_weight = false, fresh_router = false;
    RoutedGradients all;
    all.d = d;
    all.d_logit = d_logit;
    if (d) all.weight = sum_for(ctx, weight, fresh_weight);
    if (d_logit) all.router = sum_for(ctx, of.router, fresh_router);
    all.dx = gradient_to_add_to(x);  // before another handle to it
    if (!all.dx) all.dx = gradient_like(ctx, x);
    all.arrived = x.gradient()->value;
    if (of.scaled.p.gradient()) all.d_p = Tensor::empty(ctx, DType::kF32, of.scaled.p.shape());
    all.scratch = Tensor::empty(ctx, DType::kF32, {2 * rms_norm_bf16_scratch(of.norm.y)});
    rms_norm_routed_gradient_kernel(ctx.cuda(), of, all);
    x.gradient()->value = all.dx;
    x.gradient()->own = true;
    if (fresh_weight) accumulate(ctx, weight, all.weight);
    if (fresh_router) accumulate(ctx, of.router, all.router);
    if (all.d_p) accumulate(ctx, of.scaled.p, all.d_p);
  }
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

RoutedRows rms_norm_routed(Context& ctx, const Tensor& x, const Tensor& weight, RmsNormParams params,
                           const Tensor& router, const ScaledThrough& scaled) {
  expect_rows(x, "rms_norm_routed", "x");
  expect(weight, DType::kF32, {x.dim(-1)}, "rms_norm_routed", "weight");
  expect_bf16("rms_norm_routed", ctx, x);
  require(ctx.tape() && ctx.tape()->recording() && x.gradient() && !x.row_count(),
          "rms_norm_routed: x must be differentiable, with every row there, while a tape records");
  if (!router.defined() || router.rank() != 2 || router.dim(0) < 1 || router.dim(0) > 2)
    fail("rms_norm_routed: router must be f32 (1 or 2, {}), got {}", x.dim(1), to_string(router.shape()));
  expect(router, DType::kF32, {router.dim(0), x.dim(1)}, "rms_norm_routed", "router");
  if (scaled.p) {
    expect(scaled.p, DType::kF32, {x.dim(0)}, "rms_norm_routed", "p");
    expect(scaled.ran, DType::kF32, {x.dim(0)}, "rms_norm_routed", "ran");
  }
  RoutedRows out{Tensor::empty(ctx, DType::kBF16, x.shape()), Tensor::empty(ctx, DType::kF32, {x.dim(0)})};
  RoutedNorm of{
      {x, RowSet::all(x.dim(0)), weight, params, out.normed, Tensor::empty(ctx, DType::kF32, {x.dim(0)})},
      router,
      {scaled.p ? without_values(scaled.p) : Tensor(), scaled.ran}};
  if constexpr (kHasCuda) rms_norm_routed_kernel(ctx.cuda(), of, out.logit);
  of.norm.x = without_values(x);
  for (Tensor* made : {&out.normed, &out.logit}) *made = made->with_gradient(std::make_shared<Gradient>());
  ctx.tape()->record([of, normed = out.normed.gradient(), logit = out.logit.gradient()](Context& c) {
    const Tensor d = normed->value, d_logit = logit->value;
    normed->value = logit->value = {};
    const Tensor shaped = d ? d.reshape(of.norm.y.shape()) : Tensor();
    routed_gradient(c, of, shaped, d_logit);
  });
  return out;
}

}  // namespace fathom
