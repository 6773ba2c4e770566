#include "ops/rows/steer_rows.h"

#include "base/format.h"

namespace fathom {

void steered_thresholds_kernel(CpuBackend dev, const Tensor& score, const Steering& steering, Tensor& history,
                               Tensor& out);
void steered_thresholds_kernel(CudaBackend dev, const Tensor& score, const Steering& steering,
                               Tensor& history, Tensor& out);

Tensor steered_thresholds(Context& ctx, const Tensor& score, const Steering& steering, Tensor& history) {
  if (!score.defined() || score.dtype() != DType::kF32 || score.rank() != 1)
    fail("steered_thresholds: score must be f32 (rows), got {} {}", name_of(score.dtype()),
         to_string(score.shape()));
  if (!history.defined() || history.dtype() != DType::kI32 || history.rank() != 4 ||
      history.dim(3) != kSteeringWords || !history.is_contiguous())
    fail("steered_thresholds: history must be i32 (sequences, blocks, units, {}), dense, got {} {}",
         kSteeringWords, name_of(history.dtype()), to_string(history.shape()));
  const int64_t units = history.dim(2);
  if (steering.unit < 0 || steering.unit >= units)
    fail("steered_thresholds: unit must be in [0, {}), got {}", units, steering.unit);
  const Tensor& table = steering.table;
  if (!table.defined() || table.rank() != 2)
    fail("steered_thresholds: table must be f32 (sequences, {}), got {} {}", kSteeringParts * units,
         name_of(table.dtype()), to_string(table.shape()));
  expect(table, DType::kF32, {table.dim(0), kSteeringParts * units}, "steered_thresholds", "table");
  expect(steering.sequence, DType::kI32, score.shape(), "steered_thresholds", "sequence");
  expect(steering.positions, DType::kI32, score.shape(), "steered_thresholds", "positions");
  Tensor out = Tensor::empty(ctx, DType::kF32, score.shape()).counted_like(score);
  on_device(ctx, [&](auto dev) { steered_thresholds_kernel(dev, score, steering, history, out); });
  return out;
}

}  // namespace fathom
