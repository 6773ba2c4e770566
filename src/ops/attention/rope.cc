#include "ops/attention/rope.h"

#include "base/format.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void rope_kernel(CpuBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params, Tensor& out);
void rope_kernel(CudaBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params, Tensor& out);
// Turned back: the transposed rotation, times the magnitude.
void rope_gradient_kernel(CpuBackend dev, const Tensor& d, const Tensor& positions,
                          const Tensor& inverse_frequency, RopeParams params, Tensor& dx);
void rope_gradient_kernel(CudaBackend dev, const Tensor& d, const Tensor& positions,
                          const Tensor& inverse_frequency, RopeParams params, Tensor& dx);

namespace {

void check(const Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency) {
  const bool f32 = x.defined() && x.dtype() == DType::kF32 && x.rank() == 3 && x.is_contiguous();
  const bool bf16 = x.defined() && x.dtype() == DType::kBF16 && x.rank() == 3 && x.has_dense_rows() &&
                    ctx.device() == Device::kCuda;
  if (!(f32 || bf16) || x.dim(2) % 2 != 0) {
    fail("rope: x must be dense f32 (rows, heads, head_dim) with an even head_dim, got {} {}",
         name_of(x.dtype()), to_string(x.shape()));
  }
  expect(positions, DType::kI32, {x.dim(0)}, "rope", "positions");
  expect(inverse_frequency, DType::kF32, {x.dim(2) / 2}, "rope", "inverse_frequency");
  if (x.dim(2) > kMaxRopeDim) fail("rope: head_dim must be at most {}, got {}", kMaxRopeDim, x.dim(2));
}

// out: may be x.
void turn(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
          RopeParams params, Tensor& out) {
  on_device(ctx, [&](auto dev) { rope_kernel(dev, x, positions, inverse_frequency, params, out); });
  differentiate(ctx, {&x}, out, [=, x = without_values(x)](Context& c, const Tensor& d) {
    Tensor dx = gradient_like(c, x);
    on_device(c, [&](auto dev) {
      rope_gradient_kernel(dev, d.counted_like(x), positions, inverse_frequency, params, dx);
    });
    accumulate(c, x, dx);
  });
}

}  // namespace

Tensor rope(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
            RopeParams params) {
  check(ctx, x, positions, inverse_frequency);
  Tensor out = Tensor::empty(ctx, x.dtype(), x.shape()).counted_like(x);
  turn(ctx, x, positions, inverse_frequency, params, out);
  return out;
}

Tensor rope_over(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params) {
  if (!x.defined() || x.dtype() != DType::kBF16) return rope(ctx, x, positions, inverse_frequency, params);
  check(ctx, x, positions, inverse_frequency);
  Tensor out = detach(x);
  turn(ctx, x, positions, inverse_frequency, params, out);
  return out;
}

}  // namespace fathom
