#include "ops/rows/add_rows.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void add_rows_kernel(CpuBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out);
void add_rows_kernel(CudaBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out);
// The kept rows of d; zeros past them unless d_branch is compacted.
void add_rows_gradient_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch);
void add_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch);

namespace {

void add_rows_gradient(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch,
                       const Tensor& d) {
  accumulate(ctx, h, d);
  if (!branch.gradient()) return;
  if (kept.is_all()) return accumulate(ctx, branch, d);
  Tensor d_branch = gradient_like(ctx, branch);
  on_device(ctx, [&](auto dev) { add_rows_gradient_kernel(dev, kept, d, d_branch); });
  accumulate(ctx, branch, d_branch);
}

void check_operands(const Tensor& h, const RowSet& kept, const Tensor& branch) {
  expect_rows(h, "add_rows", "h");
  if (h.rank() != 2) fail("add_rows: h must be f32 (rows, d), got {}", to_string(h.shape()));
  if (kept.is_all() && kept.capacity() != h.dim(0))
    fail("add_rows: {} rows kept of {}", kept.capacity(), h.dim(0));
  expect(branch, DType::kF32, {kept.capacity(), h.dim(1)}, "add_rows", "branch");
}

void note_gradient(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out) {
  differentiate(ctx, {&h, &branch}, out,
                [kept, h = without_values(h), branch = without_values(branch)](Context& c, const Tensor& d) {
                  add_rows_gradient(c, h, kept, branch, d);
                });
}

}  // namespace

Tensor add_rows(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch) {
  if (kept.is_none()) return h;
  check_operands(h, kept, branch);
  Tensor out = Tensor::empty(ctx, DType::kF32, h.shape()).counted_like(h);
  on_device(ctx, [&](auto dev) { add_rows_kernel(dev, h, kept, branch, out); });
  note_gradient(ctx, h, kept, branch, out);
  return out;
}

void add_rows_to(Context& ctx, Tensor& h, const RowSet& kept, const Tensor& branch) {
  if (kept.is_none()) return;
  const bool recording = ctx.tape() && ctx.tape()->recording();
  if (recording && !h.is_only_handle()) {  // a gradient needs h as it is
    h = add_rows(ctx, h, kept, branch);
    return;
  }
  check_operands(h, kept, branch);
  on_device(ctx, [&](auto dev) { add_rows_kernel(dev, h, kept, branch, h); });
  if (!recording) return;
  Tensor out = detach(h);
  note_gradient(ctx, h, kept, branch, out);
  h = out;
}

}  // namespace fathom
