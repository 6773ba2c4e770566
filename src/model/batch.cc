#include "model/batch.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tensor/memory.h"

namespace fathom {
namespace {

constexpr size_t kOnStack = 1024;  // numbers: a decode step's batch allocates nothing
constexpr std::array kColumns{&BatchRow::token, &BatchRow::position, &BatchRow::sequence, &BatchRow::key};

// i32 (count) on the context's device, in one copy, from write(numbers).
template <class Fn>
Tensor numbers(Context& ctx, size_t count, Fn&& write) {
  Tensor out = Tensor::empty(ctx, DType::kI32, {static_cast<int64_t>(count)});
  int32_t few[kOnStack];
  std::vector<int32_t> many(count > kOnStack ? count : 0);
  int32_t* host = count > kOnStack ? many.data() : few;
  write(host);
  copy_bytes(ctx, out.raw(), out.device(), host, Device::kCpu, count * sizeof(int32_t));
  return out;
}

RowSet wanting_logits(Context& ctx, std::span<const BatchRow> rows) {
  const auto wants = [](const BatchRow& row) { return row.wants_logits; };
  const auto total = static_cast<int64_t>(rows.size());
  const auto wanted = static_cast<int32_t>(std::count_if(rows.begin(), rows.end(), wants));
  if (wanted == 0) return RowSet::none(total);
  if (wanted == total) return RowSet::all(total);
  const Tensor ids = numbers(ctx, static_cast<size_t>(wanted), [&](int32_t* to) {
    for (size_t row = 0; row < rows.size(); ++row) {
      if (wants(rows[row])) *to++ = static_cast<int32_t>(row);
    }
  });
  return RowSet::some(ids, known_count(ctx, wanted));
}

}  // namespace

Batch make_batch(Context& ctx, std::span<const BatchRow> rows) {
  Batch batch;
  const Tensor columns = numbers(ctx, kColumns.size() * rows.size(), [&](int32_t* to) {
    for (const auto member : kColumns) {
      for (const BatchRow& row : rows) *to++ = row.*member;
    }
  });
  const auto count = static_cast<int64_t>(rows.size());
  batch.tokens = columns.rows(0, count);
  batch.positions = columns.rows(count, count);
  batch.sequence = columns.rows(2 * count, count);
  batch.keys = columns.rows(3 * count, count);
  for (const BatchRow& row : rows) batch.sequences = std::max<int64_t>(batch.sequences, row.sequence + 1);
  batch.logit_rows = wanting_logits(ctx, rows);
  return batch;
}

std::span<const BatchRow> rows_on_host(Context& ctx, const Batch& batch, std::vector<BatchRow>& room) {
  if (!batch.given.empty()) return batch.given;
  const std::array<const Tensor*, kColumns.size()> tensors{&batch.tokens, &batch.positions, &batch.sequence,
                                                           &batch.keys};
  room.resize(static_cast<size_t>(batch.rows()));
  int32_t piece[kOnStack];
  for (size_t c = 0; c < kColumns.size(); ++c) {
    for (size_t begin = 0; begin < room.size(); begin += kOnStack) {
      const size_t count = std::min(kOnStack, room.size() - begin);
      copy_to_host(ctx, tensors[c]->rows(static_cast<int64_t>(begin), static_cast<int64_t>(count)),
                   std::span(piece).first(count));
      for (size_t i = 0; i < count; ++i) room[begin + i].*kColumns[c] = piece[i];
    }
  }
  return room;
}

}  // namespace fathom
