#include "ops/rows/select_rows.h"

#include "base/format.h"

namespace fathom {

// ids: i32 (rows), count: i32 (1).
void select_rows_kernel(CpuBackend dev, const Tensor& score, Compare compare, const Tensor& threshold,
                        Tensor& ids, Tensor& count);
void select_rows_kernel(CudaBackend dev, const Tensor& score, Compare compare, const Tensor& threshold,
                        Tensor& ids, Tensor& count);
void select_rows_kernel(CpuBackend dev, const Tensor& score, const SequenceThresholds& thresholds,
                        Tensor& ids, Tensor& count);
void select_rows_kernel(CudaBackend dev, const Tensor& score, const SequenceThresholds& thresholds,
                        Tensor& ids, Tensor& count);
void complement_kernel(CpuBackend dev, const RowSet& kept, Tensor& ids, Tensor& count);
void complement_kernel(CudaBackend dev, const RowSet& kept, Tensor& ids, Tensor& count);
// all() or none() where the set is that: for a backend whose counts the host can read for nothing.
RowSet known_set(CpuBackend dev, const RowSet& kept);
void row_mask_kernel(CpuBackend dev, const RowSet& kept, Tensor& out);
void row_mask_kernel(CudaBackend dev, const RowSet& kept, Tensor& out);

namespace {

void expect_capacity(const RowSet& kept, int64_t rows, const char* op) {
  if (rows < 0 || (kept.is_all() && kept.capacity() != rows))
    fail("{}: a set of {} rows, of {}", op, kept.capacity(), rows);
}

// At inference every set that holds all rows or none says so, and what follows takes the short way: on the
// CPU, one row's decode step then costs what it would with the unit removed.
RowSet known_on_host(Context& ctx, const RowSet& kept) {
  return ctx.device() == Device::kCpu && !ctx.tape() ? known_set(ctx.cpu(), kept) : kept;
}

void expect_score(const Tensor& score) {
  if (!score.defined() || score.dtype() != DType::kF32 || score.rank() != 1)
    fail("select_rows: score must be f32 (rows), got {} {}", name_of(score.dtype()),
         to_string(score.shape()));
}

template <class... Rule>
RowSet select(Context& ctx, const Tensor& score, const Rule&... rule) {
  Tensor ids = Tensor::empty(ctx, DType::kI32, score.shape()), count = new_count(ctx);
  on_device(ctx, [&](auto dev) { select_rows_kernel(dev, score, rule..., ids, count); });
  return known_on_host(ctx, RowSet::some(ids, count));
}

}  // namespace

RowSet select_rows(Context& ctx, const Tensor& score, Compare compare, const Tensor& threshold) {
  expect_score(score);
  if (!threshold || threshold.shape() != Shape{1})
    expect(threshold, DType::kF32, score.shape(), "select_rows", "threshold");
  expect(threshold, DType::kF32, threshold.shape(), "select_rows", "threshold");
  return select(ctx, score, compare, threshold);
}

RowSet select_rows(Context& ctx, const Tensor& score, const SequenceThresholds& thresholds) {
  expect_score(score);
  const Tensor& table = thresholds.table;
  if (!table.defined() || table.dtype() != DType::kF32 || table.rank() != 2)
    fail("select_rows: table must be f32 (sequences, columns), got {} {}", name_of(table.dtype()),
         to_string(table.shape()));
  if (thresholds.column < 0 || thresholds.column >= table.dim(1))
    fail("select_rows: column must be in [0, {}), got {}", table.dim(1), thresholds.column);
  expect(thresholds.sequence, DType::kI32, score.shape(), "select_rows", "sequence");
  return select(ctx, score, thresholds);
}

RowSet complement(Context& ctx, const RowSet& kept, int64_t rows) {
  expect_capacity(kept, rows, "complement");
  if (kept.is_all()) return RowSet::none(rows);
  if (kept.is_none()) return RowSet::all(rows);
  Tensor ids = Tensor::empty(ctx, DType::kI32, {rows}), count = new_count(ctx);
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
