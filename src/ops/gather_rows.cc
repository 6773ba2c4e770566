#include "base/format.h"
#include "ops/row_access.h"
#include "ops/rows.h"

namespace fathom {

void gather_rows_kernel(CpuBackend dev, const Tensor& x, const RowSet& kept, Tensor& out);
void gather_rows_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, Tensor& out);

Tensor gather_rows(Context& ctx, const Tensor& x, const RowSet& kept) {
  const bool floats = x.defined() && x.dtype() == DType::kF32 && x.rank() == 2;
  const bool ids = x.defined() && x.dtype() == DType::kI32 && x.rank() == 1;
  if (!floats && !ids) {
    fail("gather_rows: x must be f32 (rows, d) or i32 (rows), got {} {}", name_of(x.dtype()),
         to_string(x.shape()));
  }
  if (kept.is_all()) {
    if (kept.capacity() != x.dim(0)) fail("gather_rows: {} rows kept of {}", kept.capacity(), x.dim(0));
    return x;
  }
  const int64_t capacity = kept.is_none() ? 0 : kept.capacity();
  Tensor out = Tensor::empty(ctx, x.dtype(), floats ? Shape{capacity, x.dim(1)} : Shape{capacity});
  if (capacity == 0) return out;
  on_device(ctx, [&](auto dev) { gather_rows_kernel(dev, x, kept, out); });
  return out.counted_by(kept.count().data<int32_t>());
}

}  // namespace fathom
