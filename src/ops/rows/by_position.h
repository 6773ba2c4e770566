// What a sequence's first rows leave behind, kept by position.
#pragma once

#include "tensor/rows.h"

namespace fathom {

// positions: i32 (rows) -> f32 (rows): 1 where the position is below `limit`, else 0.
Tensor before_position(Context& ctx, const Tensor& positions, int64_t limit);

// table: f32 (sequences, n), changed in place: row r of the set leaves its value at table[sequence[r],
// positions[r]]. values: f32 (capacity), compacted by `rows`; sequence, positions: i32 (batch rows), the
// positions of the set's rows below n. A position that is written again keeps its newest value, so rows that
// are taken back and fed again leave no trace. Values with a gradient are refused while a tape records.
void store_by_position(Context& ctx, Tensor& table, const Tensor& values, const RowSet& rows,
                       const Tensor& sequence, const Tensor& positions);

}  // namespace fathom
