#include "ops/rows/gather_rows.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void gather_rows_kernel(CpuBackend dev, const Tensor& x, const RowSet& kept, Tensor& out);
void gather_rows_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, Tensor& out);
// Adds d to the kept rows of sum, as many elements as x.
void gather_rows_gradient_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& sum);
void gather_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& sum);
// The same into memory that is not initialised.
void spread_rows_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& dx);
void spread_rows_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& dx);

namespace {

void gather_rows_gradient(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& d) {
  if (Tensor sum = gradient_to_add_to(x))
    return on_device(ctx, [&](auto dev) { gather_rows_gradient_kernel(dev, kept, d, sum); });
  Tensor dx = gradient_like(ctx, x);
  on_device(ctx, [&](auto dev) { spread_rows_kernel(dev, kept, d, dx); });
  accumulate(ctx, x, dx);
}

}  // namespace

Tensor gather_rows(Context& ctx, const Tensor& x, const RowSet& kept) {
  const bool floats = x.defined() && x.dtype() == DType::kF32 && x.rank() == 2;
  const bool scalars = x.defined() && x.dtype() == DType::kF32 && x.rank() == 1;
  const bool ids = x.defined() && x.dtype() == DType::kI32 && x.rank() == 1;
  const bool halves =
      x.defined() && x.dtype() == DType::kBF16 && x.rank() == 2 && x.dim(1) % 2 == 0 && x.stride(0) % 2 == 0;
  if (!floats && !scalars && !ids && !halves) {
    fail(
        "gather_rows: x must be f32 (rows, d), bf16 (rows, d) of even d, f32 (rows) or i32 (rows), got {} {}",
        name_of(x.dtype()), to_string(x.shape()));
  }
  if (kept.is_all()) {
    if (kept.capacity() != x.dim(0)) fail("gather_rows: {} rows kept of {}", kept.capacity(), x.dim(0));
    return x;
  }
  if (halves && differentiable(ctx, {&x})) fail("gather_rows: rows of bf16 have no gradient: detach them");
  const int64_t capacity = kept.is_none() ? 0 : kept.capacity();
  Tensor out = Tensor::empty(ctx, x.dtype(), x.rank() == 2 ? Shape{capacity, x.dim(1)} : Shape{capacity});
  if (capacity == 0) return out;
  on_device(ctx, [&](auto dev) { gather_rows_kernel(dev, x, kept, out); });
  out = out.counted_by(kept.count());
  differentiate(ctx, {&x}, out, [kept, x = without_values(x)](Context& c, const Tensor& d) {
    gather_rows_gradient(c, x, kept, d);
  });
  return out;
}

}  // namespace fathom
