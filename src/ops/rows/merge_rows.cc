#include "ops/rows/merge_rows.h"

#include "base/format.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void merge_rows_kernel(CpuBackend dev, const Tensor& below, const RowSet& kept, const Tensor& fresh,
                       Tensor& out);
void merge_rows_kernel(CudaBackend dev, const Tensor& below, const RowSet& kept, const Tensor& fresh,
                       Tensor& out);
// d, zeros at the kept rows.
void merge_rows_dbelow_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_below);
void merge_rows_dbelow_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_below);
// d at the kept rows; zeros past them unless d_fresh is compacted.
void merge_rows_dfresh_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_fresh);
void merge_rows_dfresh_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_fresh);

namespace {

void expect_dense(const Tensor& x, const char* name) {
  if (!x.defined()) fail("merge_rows: {} must be dense f32 (rows, …), got nothing", name);
  if (x.dtype() != DType::kF32 || x.rank() < 1 || !x.is_contiguous())
    fail("merge_rows: {} must be dense f32 (rows, …), got {} {}", name, name_of(x.dtype()),
         to_string(x.shape()));
}

void merge_rows_gradient(Context& ctx, const Tensor& below, const RowSet& kept, const Tensor& fresh,
                         const Tensor& d) {
  if (below.gradient()) {
    Tensor d_below = gradient_like(ctx, below);
    on_device(ctx, [&](auto dev) { merge_rows_dbelow_kernel(dev, kept, d, d_below); });
    accumulate(ctx, below, d_below);
  }
  if (!fresh.gradient()) return;
  Tensor d_fresh = gradient_like(ctx, fresh);
  on_device(ctx, [&](auto dev) { merge_rows_dfresh_kernel(dev, kept, d, d_fresh); });
  accumulate(ctx, fresh, d_fresh);
}

}  // namespace

Tensor merge_rows(Context& ctx, const Tensor& below, const RowSet& kept, const Tensor& fresh) {
  expect_dense(below, "below");
  if (kept.is_none()) return below;
  expect_dense(fresh, "fresh");
  Shape wanted{kept.capacity()};
  for (int i = 1; i < below.rank(); ++i) wanted.push_back(below.dim(i));
  expect(fresh, DType::kF32, wanted, "merge_rows", "fresh");
  if (kept.is_all()) {
    if (kept.capacity() != below.dim(0))
      fail("merge_rows: {} rows kept of {}", kept.capacity(), below.dim(0));
    return fresh;
  }
  Tensor out = gradient_like(ctx, below);
  on_device(ctx, [&](auto dev) { merge_rows_kernel(dev, below, kept, fresh, out); });
  differentiate(ctx, {&below, &fresh}, out,
                [kept, below = without_values(below), fresh = without_values(fresh)](
                    Context& c, const Tensor& d) { merge_rows_gradient(c, below, kept, fresh, d); });
  return out;
}

}  // namespace fathom
