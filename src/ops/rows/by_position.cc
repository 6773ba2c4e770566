#include "ops/rows/by_position.h"

#include "base/format.h"
#include "tensor/tape.h"

namespace fathom {

void before_position_kernel(CpuBackend dev, const Tensor& positions, int64_t limit, Tensor& out);
void before_position_kernel(CudaBackend dev, const Tensor& positions, int64_t limit, Tensor& out);
void store_by_position_kernel(CpuBackend dev, Tensor& table, const Tensor& values, const RowSet& rows,
                              const Tensor& sequence, const Tensor& positions);
void store_by_position_kernel(CudaBackend dev, Tensor& table, const Tensor& values, const RowSet& rows,
                              const Tensor& sequence, const Tensor& positions);

Tensor before_position(Context& ctx, const Tensor& positions, int64_t limit) {
  if (!positions.defined() || positions.dtype() != DType::kI32 || positions.rank() != 1)
    fail("before_position: positions must be i32 (rows), got {} {}", name_of(positions.dtype()),
         to_string(positions.shape()));
  Tensor out = Tensor::empty(ctx, DType::kF32, positions.shape()).counted_like(positions);
  on_device(ctx, [&](auto dev) { before_position_kernel(dev, positions, limit, out); });
  return out;
}

void store_by_position(Context& ctx, Tensor& table, const Tensor& values, const RowSet& rows,
                       const Tensor& sequence, const Tensor& positions) {
  if (!table.defined() || table.rank() != 2 || !table.is_contiguous())
    fail("store_by_position: table must be f32 (sequences, n), dense, got {}", to_string(table.shape()));
  expect(table, DType::kF32, table.shape(), "store_by_position", "table");
  if (rows.is_none()) return;
  expect(values, DType::kF32, {rows.capacity()}, "store_by_position", "values");
  if (!positions.defined() || positions.rank() != 1)
    fail("store_by_position: positions must be i32 (rows), got {}", to_string(positions.shape()));
  expect(positions, DType::kI32, positions.shape(), "store_by_position", "positions");
  expect(sequence, DType::kI32, positions.shape(), "store_by_position", "sequence");
  if (differentiable(ctx, {&values})) fail("store_by_position: a table holds no gradients");
  on_device(ctx, [&](auto dev) { store_by_position_kernel(dev, table, values, rows, sequence, positions); });
}

}  // namespace fathom
