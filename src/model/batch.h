// One forward pass is over a packed list of rows from any number of sequences: no padding, no (batch, time).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/rows.h"

namespace fathom {

struct BatchRow {
  int32_t token = 0;
  int32_t position = 0;
  int32_t sequence = 0;  // slot of the cache
  bool wants_logits = false;
  int32_t key = 0;  // what random decisions are keyed by, beside the position: never the slot
};

struct Batch {
  Tensor tokens, positions, sequence, keys;  // i32 (rows)
  int64_t sequences = 0;                     // slots that occur are below this
  RowSet logit_rows = RowSet::none(0);
  int64_t vocab = 0;                // logits of this many tokens, those of the lowest ids; 0: all
  std::span<const BatchRow> given;  // the same rows on the host, where the caller keeps them; or empty
  int64_t rows() const { return tokens.dim(0); }
};

// On the context's device, in its arena. Rows of one sequence must stand in the order of their positions.
Batch make_batch(Context& ctx, std::span<const BatchRow> rows);

// The same in two halves, of which the first needs no context: a batch as one block of numbers on the host.
struct BatchShape {
  int64_t rows = 0, sequences = 0;
  int64_t wanted = 0;       // rows that want logits
  int64_t numbers() const;  // i32, in the block
};
// Where a piece of the block begins that follows these numbers: at the next 64 bytes.
constexpr int64_t next_piece(int64_t numbers) {
  return (numbers + 15) / 16 * 16;
}
BatchShape batch_shape(std::span<const BatchRow> rows);
void write_batch(std::span<const BatchRow> rows, const BatchShape& shape, int32_t* block);
// block: i32 (numbers() or more), on the context's device.
Batch batch_of(Context& ctx, const Tensor& block, const BatchShape& shape);

// The rows on the host (token, position, sequence and key): batch.given, or copied from the device into
// `room`.
std::span<const BatchRow> rows_on_host(Context& ctx, const Batch& batch, std::vector<BatchRow>& room);

}  // namespace fathom
