#pragma once

#include "ops/kv_view.h"
#include "tensor/rows.h"

namespace fathom {

// Writes the kept rows' keys and values into the pool and lists them as the newest entries of their
// sequences. k, v: f32 (capacity, kv_heads, head_dim), compacted by `kept`. positions, sequence: i32 (batch
// rows). page_table: i32 (sequences, pages): entry i of a sequence goes to slot page_table[seq][i / page] ·
// page + i % page; the caller has reserved those pages. Changes kv in place, the one op that does; rows of
// one sequence are appended in row order. A cache holds no gradients: refused while a tape records.
struct AppendExtras {
  Tensor bias;                    // f32 (batch rows): what the new entries' keys are biased by; undefined: 0
  const KvView* below = nullptr;  // the layer below, whose entries the rows that are not kept share
};
void append_kv(Context& ctx, KvView& kv, const Tensor& page_table, int64_t page, const Tensor& k,
               const Tensor& v, const RowSet& kept, const Tensor& positions, const Tensor& sequence,
               const AppendExtras& extras = {});

}  // namespace fathom
