#include "base/format.h"
#include "ops/row_access.h"
#include "ops/rows.h"

namespace fathom {

void add_rows_kernel(CpuBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out);
void add_rows_kernel(CudaBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out);

namespace {

void check_operands(const Tensor& h, const RowSet& kept, const Tensor& branch) {
  expect_rows(h, "add_rows", "h");
  if (h.rank() != 2) fail("add_rows: h must be f32 (rows, d), got {}", to_string(h.shape()));
  if (kept.is_all() && kept.capacity() != h.dim(0))
    fail("add_rows: {} rows kept of {}", kept.capacity(), h.dim(0));
  expect(branch, DType::kF32, {kept.capacity(), h.dim(1)}, "add_rows", "branch");
}

}  // namespace

Tensor add_rows(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch) {
  if (kept.is_none()) return h;
  check_operands(h, kept, branch);
  Tensor out = Tensor::empty(ctx, DType::kF32, h.shape());
  on_device(ctx, [&](auto dev) { add_rows_kernel(dev, h, kept, branch, out); });
  return out;
}

void add_rows_to(Context& ctx, Tensor& h, const RowSet& kept, const Tensor& branch) {
  if (kept.is_none()) return;
  check_operands(h, kept, branch);
  on_device(ctx, [&](auto dev) { add_rows_kernel(dev, h, kept, branch, h); });
}

}  // namespace fathom
