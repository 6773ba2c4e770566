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

// The rows on the host (token, position, sequence and key): batch.given, or copied from the device into
// `room`.
std::span<const BatchRow> rows_on_host(Context& ctx, const Batch& batch, std::vector<BatchRow>& room);

}  // namespace fathom
