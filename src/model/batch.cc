#include "model/batch.h"

#include "tensor/memory.h"

namespace fathom {
namespace {

// i32 (rows.size()) on the context's device, filled by value(row) without a heap allocation.
template <class Fn>
Tensor column(Context& ctx, std::span<const BatchRow> rows, Fn&& value) {
  Tensor out = Tensor::empty(ctx, DType::kI32, {static_cast<int64_t>(rows.size())});
  int32_t piece[256];
  for (size_t begin = 0; begin < rows.size(); begin += 256) {
    const size_t count = std::min<size_t>(256, rows.size() - begin);
    for (size_t i = 0; i < count; ++i) piece[i] = value(rows[begin + i]);
    copy_bytes(ctx, out.data<int32_t>() + begin, out.device(), piece, Device::kCpu, count * sizeof(int32_t));
  }
  return out;
}

RowSet wanting_logits(Context& ctx, std::span<const BatchRow> rows) {
  int64_t wanted = 0;
  for (const BatchRow& row : rows) wanted += row.wants_logits;
  const auto total = static_cast<int64_t>(rows.size());
  if (wanted == 0) return RowSet::none(total);
  if (wanted == total) return RowSet::all(total);
  Tensor ids = Tensor::empty(ctx, DType::kI32, {wanted});
  int32_t next = 0;
  for (int64_t i = 0; i < total; ++i) {
    if (!rows[static_cast<size_t>(i)].wants_logits) continue;
    const auto id = static_cast<int32_t>(i);
    copy_bytes(ctx, ids.data<int32_t>() + next++, ids.device(), &id, Device::kCpu, sizeof id);
  }
  return RowSet::some(ids, Tensor::from(ctx, std::span<const int32_t>(&next, 1), {1}));
}

}  // namespace

Batch make_batch(Context& ctx, std::span<const BatchRow> rows) {
  Batch batch;
  batch.tokens = column(ctx, rows, [](const BatchRow& row) { return row.token; });
  batch.positions = column(ctx, rows, [](const BatchRow& row) { return row.position; });
  batch.sequence = column(ctx, rows, [](const BatchRow& row) { return row.sequence; });
  batch.logit_rows = wanting_logits(ctx, rows);
  return batch;
}

}  // namespace fathom
