#include "ops/rows/add_rows.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/fill.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/mask_rows.h"

namespace fathom {

void add_rows_kernel(CpuBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out);
void add_rows_kernel(CudaBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out);
// The kept rows of d; zeros past them unless d_branch is compacted.
void add_rows_gradient_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch);
void add_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch);

// Of a branch in bf16: d_branch (undefined: not wanted) becomes the kept rows of d, rounded, and the kept
// rows of d_score (undefined: not wanted) ⟨d_r, branch_r⟩.
void add_bf16_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& branch, const Tensor& d,
                                   Tensor& d_branch, Tensor& d_score);

namespace {

struct Join {
  RowSet kept;
  Tensor h, branch, score;  // without the values that are not needed
};

void bf16_gradient(Context& ctx, const Join& join, const Tensor& d) {
  if constexpr (kHasCuda) {
    Tensor d_branch, d_score;
    if (join.branch.gradient()) d_branch = gradient_like(ctx, join.branch);
    if (join.score.gradient()) {
      d_score = Tensor::empty(ctx, DType::kF32, join.score.shape());
      if (!join.kept.is_all()) fill(ctx, d_score, 0.0f);
    }
    add_bf16_rows_gradient_kernel(ctx.cuda(), join.kept, join.branch, d, d_branch, d_score);
    if (d_branch) accumulate(ctx, join.branch, d_branch);
    if (d_score) accumulate(ctx, join.score, d_score);
  }
}

void add_rows_gradient(Context& ctx, const Join& join, const Tensor& d) {
  accumulate(ctx, join.h, d);
  const Tensor& branch = join.branch;
  if (branch.dtype() == DType::kBF16) return bf16_gradient(ctx, join, d);
  if (!branch.gradient()) return;
  if (join.kept.is_all()) return accumulate(ctx, branch, d);
  Tensor d_branch = gradient_like(ctx, branch);
  on_device(ctx, [&](auto dev) { add_rows_gradient_kernel(dev, join.kept, d, d_branch); });
  accumulate(ctx, branch, d_branch);
}

void check_operands(const Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch) {
  expect_rows(h, "add_rows", "h");
  if (h.rank() != 2) fail("add_rows: h must be f32 (rows, d), got {}", to_string(h.shape()));
  if (kept.is_all() && kept.capacity() != h.dim(0))
    fail("add_rows: {} rows kept of {}", kept.capacity(), h.dim(0));
  const bool bf16 = branch.defined() && branch.dtype() == DType::kBF16 && ctx.device() == Device::kCuda &&
                    h.dim(1) % 4 == 0 && h.stride(0) % 4 == 0 && branch.is_contiguous();
  expect(branch, bf16 ? DType::kBF16 : DType::kF32, {kept.capacity(), h.dim(1)}, "add_rows", "branch");
}

// An f32 branch through which the score learns.
Tensor learning(Context& ctx, const RowSet& kept, const Tensor& branch, const Tensor& score) {
  if (!score || branch.dtype() != DType::kF32 || !differentiable(ctx, {&score})) return branch;
  return scale_through(ctx, branch, gather_rows(ctx, score, kept));
}

void note_gradient(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch,
                   const Tensor& score, Tensor& out) {
  Join join{kept, without_values(h), without_values(branch), {}};
  if (branch.dtype() == DType::kBF16 && score.gradient()) {
    join.branch = branch;
    join.score = without_values(score);
  }
  differentiate(ctx, {&h, &branch, &join.score}, out,
                [join](Context& c, const Tensor& d) { add_rows_gradient(c, join, d); });
}

}  // namespace

Tensor add_rows(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch,
                const Tensor& score) {
  if (kept.is_none()) return h;
  check_operands(ctx, h, kept, branch);
  const Tensor more = learning(ctx, kept, branch, score);
  Tensor out = Tensor::empty(ctx, DType::kF32, h.shape()).counted_like(h);
  on_device(ctx, [&](auto dev) { add_rows_kernel(dev, h, kept, more, out); });
  note_gradient(ctx, h, kept, more, score, out);
  return out;
}

void add_rows_to(Context& ctx, Tensor& h, const RowSet& kept, const Tensor& branch, const Tensor& score) {
  if (kept.is_none()) return;
  const bool recording = ctx.tape() && ctx.tape()->recording();
  if (recording && !h.is_only_handle()) {  // a gradient needs h as it is
    h = add_rows(ctx, h, kept, branch, score);
    return;
  }
  check_operands(ctx, h, kept, branch);
  const Tensor more = learning(ctx, kept, branch, score);
  on_device(ctx, [&](auto dev) { add_rows_kernel(dev, h, kept, more, h); });
  if (!recording) return;
  Tensor out = detach(h);
  note_gradient(ctx, h, kept, more, score, out);
  h = out;
}

}  // namespace fathom
