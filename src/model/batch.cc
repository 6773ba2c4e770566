#include "model/batch.h"

#include <algorithm>

#include "tensor/memory.h"

namespace fathom {
namespace {

// i32 (count) on the context's device from next(), called for one value after another. Copied in pieces from
// the stack: no heap allocation, and few transfers.
template <class Fn>
Tensor fill(Context& ctx, int64_t count, Fn&& next) {
  Tensor out = Tensor::empty(ctx, DType::kI32, {count});
  int32_t piece[256];
  for (int64_t begin = 0; begin < count; begin += 256) {
    const int64_t size = std::min<int64_t>(256, count - begin);
    for (int64_t i = 0; i < size; ++i) piece[i] = next();
    copy_bytes(ctx, out.data<int32_t>() + begin, out.device(), piece, Device::kCpu,
               static_cast<size_t>(size) * sizeof(int32_t));
  }
  return out;
}

Tensor column(Context& ctx, std::span<const BatchRow> rows, int32_t BatchRow::*member) {
  size_t row = 0;
  return fill(ctx, static_cast<int64_t>(rows.size()), [&] { return rows[row++].*member; });
}

RowSet wanting_logits(Context& ctx, std::span<const BatchRow> rows) {
  const auto wants = [](const BatchRow& row) { return row.wants_logits; };
  const auto total = static_cast<int64_t>(rows.size());
  const auto wanted = static_cast<int32_t>(std::count_if(rows.begin(), rows.end(), wants));
  if (wanted == 0) return RowSet::none(total);
  if (wanted == total) return RowSet::all(total);
  size_t row = 0;
  const Tensor ids = fill(ctx, wanted, [&] {
    while (!rows[row].wants_logits) ++row;
    return static_cast<int32_t>(row++);
  });
  return RowSet::some(ids, known_count(ctx, wanted));
}

}  // namespace

Batch make_batch(Context& ctx, std::span<const BatchRow> rows) {
  Batch batch;
  batch.tokens = column(ctx, rows, &BatchRow::token);
  batch.positions = column(ctx, rows, &BatchRow::position);
  batch.sequence = column(ctx, rows, &BatchRow::sequence);
  batch.keys = column(ctx, rows, &BatchRow::key);
  for (const BatchRow& row : rows) batch.sequences = std::max<int64_t>(batch.sequences, row.sequence + 1);
  batch.logit_rows = wanting_logits(ctx, rows);
  return batch;
}

}  // namespace fathom
