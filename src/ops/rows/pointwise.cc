#include "ops/rows/pointwise.h"

#include "base/format.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void apply_kernel(CpuBackend dev, Unary function, const Tensor& x, Tensor& out);
void apply_kernel(CudaBackend dev, Unary function, const Tensor& x, Tensor& out);
// saved: x, or the output where needs_output().
void apply_gradient_kernel(CpuBackend dev, Unary function, const Tensor& saved, const Tensor& d, Tensor& dx);
void apply_gradient_kernel(CudaBackend dev, Unary function, const Tensor& saved, const Tensor& d, Tensor& dx);
void affine_kernel(CpuBackend dev, const Tensor& x, float scale, float shift, Tensor& out);
void affine_kernel(CudaBackend dev, const Tensor& x, float scale, float shift, Tensor& out);
void add_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void add_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void multiply_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void multiply_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out);

namespace {

// Whose derivative is simplest in the output: the input's memory is then free.
bool needs_output(Unary function) {
  return function == Unary::kSigmoid || function == Unary::kRelu || function == Unary::kClamp01;
}

void expect_dense(const Tensor& x, const char* op, const char* name) {
  if (!x.defined()) fail("{}: {} must be dense f32, got nothing", op, name);
  if (x.dtype() != DType::kF32 || x.rank() < 1 || !x.is_contiguous())
    fail("{}: {} must be dense f32, got {}{} {}", op, name, x.is_contiguous() ? "" : "strided ",
         name_of(x.dtype()), to_string(x.shape()));
}

Tensor output_for(Context& ctx, const Tensor& a, const Tensor& b, const char* op) {
  expect_dense(a, op, "a");
  expect(b, DType::kF32, a.shape(), op, "b");
  expect_dense(b, op, "b");
  return gradient_like(ctx, a.row_count() ? a : a.counted_like(b));
}

}  // namespace

Tensor apply(Context& ctx, Unary function, const Tensor& x) {
  expect_dense(x, "apply", "x");
  Tensor out = gradient_like(ctx, x);
  on_device(ctx, [&](auto dev) { apply_kernel(dev, function, x, out); });
  differentiate(ctx, {&x}, out,
                [function, saved = needs_output(function) ? out : detach(x), x = without_values(x)](
                    Context& c, const Tensor& d) {
                  Tensor dx = gradient_like(c, x);
                  on_device(c, [&](auto dev) { apply_gradient_kernel(dev, function, saved, d, dx); });
                  accumulate(c, x, dx);
                });
  return out;
}

Tensor affine(Context& ctx, const Tensor& x, float scale, float shift) {
  expect_dense(x, "affine", "x");
  Tensor out = gradient_like(ctx, x);
  on_device(ctx, [&](auto dev) { affine_kernel(dev, x, scale, shift, out); });
  differentiate(ctx, {&x}, out, [scale, x = without_values(x)](Context& c, const Tensor& d) {
    if (scale == 1.0f) return accumulate(c, x, d);
    Tensor dx = gradient_like(c, x);
    on_device(c, [&](auto dev) { affine_kernel(dev, d.counted_like(x), scale, 0.0f, dx); });
    accumulate(c, x, dx);
  });
  return out;
}

Tensor add(Context& ctx, const Tensor& a, const Tensor& b) {
  Tensor out = output_for(ctx, a, b, "add");
  on_device(ctx, [&](auto dev) { add_kernel(dev, a, b, out); });
  differentiate(ctx, {&a, &b}, out,
                [a = without_values(a), b = without_values(b)](Context& c, const Tensor& d) {
                  accumulate(c, a, d);
                  accumulate(c, b, d);
                });
  return out;
}

Tensor multiply(Context& ctx, const Tensor& a, const Tensor& b) {
  Tensor out = output_for(ctx, a, b, "multiply");
  on_device(ctx, [&](auto dev) { multiply_kernel(dev, a, b, out); });
  differentiate(ctx, {&a, &b}, out, [=](Context& c, const Tensor& d) {
    const auto pass = [&](const Tensor& to, const Tensor& other) {
      if (!to.gradient()) return;
      Tensor dx = gradient_like(c, to);
      on_device(c, [&](auto dev) { multiply_kernel(dev, d.counted_like(to), other, dx); });
      accumulate(c, to, dx);
    };
    pass(a, b);
    pass(b, a);
  });
  return out;
}

}  // namespace fathom
