#include "ops/select_rows.h"

#include "base/format.h"

namespace fathom {

// ids: i32 (rows), count: i32 (1).
void select_rows_kernel(CpuBackend dev, const Tensor& score, Compare compare, const Tensor& threshold,
                        Tensor& ids, Tensor& count);
void select_rows_kernel(CudaBackend dev, const Tensor& score, Compare compare, const Tensor& threshold,
                        Tensor& ids, Tensor& count);
void complement_kernel(CpuBackend dev, const RowSet& kept, Tensor& ids, Tensor& count);
void complement_kernel(CudaBackend dev, const RowSet& kept, Tensor& ids, Tensor& count);
void row_mask_kernel(CpuBackend dev, const RowSet& kept, Tensor& out);
void row_mask_kernel(CudaBackend dev, const RowSet& kept, Tensor& out);

namespace {

void expect_capacity(const RowSet& kept, int64_t rows, const char* op) {
  if (rows < 0 || (kept.is_all() && kept.capacity() != rows))
    fail("{}: a set of {} rows, of {}", op, kept.capacity(), rows);
}

}  // namespace

RowSet select_rows(Context& ctx, const Tensor& score, Compare compare, const Tensor& threshold) {
  if (!score.defined() || score.dtype() != DType::kF32 || score.rank() != 1)
    fail("select_rows: score must be f32 (rows), got {} {}", name_of(score.dtype()),
         to_string(score.shape()));
  if (!threshold || threshold.shape() != Shape{1})
    expect(threshold, DType::kF32, score.shape(), "select_rows", "threshold");
  expect(threshold, DType::kF32, threshold.shape(), "select_rows", "threshold");
  Tensor ids = Tensor::empty(ctx, DType::kI32, score.shape()), count = Tensor::empty(ctx, DType::kI32, {1});
  on_device(ctx, [&](auto dev) { select_rows_kernel(dev, score, compare, threshold, ids, count); });
  return RowSet::some(ids, count);
}

RowSet complement(Context& ctx, const RowSet& kept, int64_t rows) {
  expect_capacity(kept, rows, "complement");
  if (kept.is_all()) return RowSet::none(rows);
  if (kept.is_none()) return RowSet::all(rows);
  Tensor ids = Tensor::empty(ctx, DType::kI32, {rows}), count = Tensor::empty(ctx, DType::kI32, {1});
  on_device(ctx, [&](auto dev) { complement_kernel(dev, kept, ids, count); });
  return RowSet::some(ids, count);
}

Tensor row_mask(Context& ctx, const RowSet& kept, int64_t rows) {
  expect_capacity(kept, rows, "row_mask");
  Tensor out = Tensor::empty(ctx, DType::kF32, {rows});
  on_device(ctx, [&](auto dev) { row_mask_kernel(dev, kept, out); });
  return out;
}

}  // namespace fathom
