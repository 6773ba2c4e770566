// Which rows run, decided where the scores are.
#pragma once

#include "tensor/rows.h"

namespace fathom {

enum class Compare : uint8_t { kAbove, kAtLeast };  // score > threshold, score ≥ threshold

// score: f32 (rows); threshold: f32 (1), or (rows): each row its own. Ids ascend, the count stays on the
// device; at inference on the CPU a set of all rows, or of none, is all() or none(). A NaN score or threshold
// keeps its row.
RowSet select_rows(Context& ctx, const Tensor& score, Compare compare, const Tensor& threshold);

// A threshold for each sequence, from one column of a table.
struct SequenceThresholds {
  const Tensor& table;     // f32 (sequences, columns)
  int64_t column;          // the one that is read
  const Tensor& sequence;  // i32 (rows)
  float own;               // where the table has NaN, and for sequences beyond its end
  float least;             // a lower one of the table counts as this
};
// score > the threshold of the row's sequence; else as above.
RowSet select_rows(Context& ctx, const Tensor& score, const SequenceThresholds& thresholds);

// The rows of [0, rows) that are not in the set.
RowSet complement(Context& ctx, const RowSet& kept, int64_t rows);

// f32 (rows): 1 for a row in the set, else 0.
Tensor row_mask(Context& ctx, const RowSet& kept, int64_t rows);

}  // namespace fathom
