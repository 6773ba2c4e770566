#include "model/batch.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tensor/memory.h"

namespace fathom {
namespace {

constexpr size_t kOnStack = 1024;  // numbers: a decode step's batch allocates nothing
constexpr std::array kColumns{&BatchRow::token, &BatchRow::position, &BatchRow::sequence, &BatchRow::key};

bool wants(const BatchRow& row) {
  return row.wants_logits;
}

// Where the ids of the rows that want logits begin: behind the columns.
int64_t ids_at(const BatchShape& shape) {
  return next_piece(static_cast<int64_t>(kColumns.size()) * shape.rows);
}

bool has_ids(const BatchShape& shape) {
  return shape.wanted > 0 && shape.wanted < shape.rows;
}

}  // namespace

int64_t BatchShape::numbers() const {
  return has_ids(*this) ? ids_at(*this) + wanted : static_cast<int64_t>(kColumns.size()) * rows;
}

BatchShape batch_shape(std::span<const BatchRow> rows) {
  BatchShape shape{.rows = std::ssize(rows)};
  for (const BatchRow& row : rows) shape.sequences = std::max<int64_t>(shape.sequences, row.sequence + 1);
  shape.wanted = std::count_if(rows.begin(), rows.end(), wants);
  return shape;
}

void write_batch(std::span<const BatchRow> rows, const BatchShape& shape, int32_t* block) {
  int32_t* to = block;
  for (const auto member : kColumns) {
    for (const BatchRow& row : rows) *to++ = row.*member;
  }
  if (!has_ids(shape)) return;
  std::fill(to, block + ids_at(shape), 0);
  to = block + ids_at(shape);
  for (size_t row = 0; row < rows.size(); ++row) {
    if (wants(rows[row])) *to++ = static_cast<int32_t>(row);
  }
}

Batch batch_of(Context& ctx, const Tensor& block, const BatchShape& shape) {
  Batch batch;
  const int64_t count = shape.rows;
  batch.tokens = block.rows(0, count);
  batch.positions = block.rows(count, count);
  batch.sequence = block.rows(2 * count, count);
  batch.keys = block.rows(3 * count, count);
  batch.sequences = shape.sequences;
  batch.logit_rows = shape.wanted == 0 ? RowSet::none(count) : RowSet::all(count);
  if (has_ids(shape))
    batch.logit_rows = RowSet::some(block.rows(ids_at(shape), shape.wanted),
                                    known_count(ctx, static_cast<int32_t>(shape.wanted)));
  return batch;
}

Batch make_batch(Context& ctx, std::span<const BatchRow> rows) {
  const BatchShape shape = batch_shape(rows);
  const auto count = static_cast<size_t>(shape.numbers());
  Tensor block = Tensor::empty(ctx, DType::kI32, {shape.numbers()});
  int32_t few[kOnStack];
  std::vector<int32_t> many(count > kOnStack ? count : 0);
  int32_t* host = count > kOnStack ? many.data() : few;
  write_batch(rows, shape, host);
  copy_bytes(ctx, block.raw(), block.device(), host, Device::kCpu, count * sizeof(int32_t));
  return batch_of(ctx, block, shape);
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
