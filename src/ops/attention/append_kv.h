#pragma once

#include "ops/attention/kv_view.h"
#include "tensor/rows.h"

namespace fathom {

// Where a layer's keys and values go: slot i that a sequence takes is slot table[seq][i / page] · page + i %
// page of the pool. The caller has reserved those pages.
struct KvPages {
  Tensor table;      // i32 (sequences, pages)
  Tensor taken;      // i32 (sequences): slots taken so far
  int64_t page = 0;  // slots of a page
};

// Writes the kept rows' keys and values into the pool and lists them as the newest entries of their
// sequences. k, v: f32 (capacity, kv_heads, head_dim), compacted by `kept`. positions, sequence: i32 (batch
// rows). Changes kv and pages.taken in place, the one op that does; rows of one sequence are appended in row
// order. A cache holds no gradients: refused while a tape records.
struct AppendExtras {
  Tensor bias;                    // f32 (batch rows): what the new entries' keys are biased by; undefined: 0
  const KvView* below = nullptr;  // the layer below, whose entries the rows that are not kept share
  const RowSet* present = nullptr;  // of those: the rows that do; null: all
};
void append_kv(Context& ctx, KvView& kv, KvPages& pages, const Tensor& k, const Tensor& v, const RowSet& kept,
               const Tensor& positions, const Tensor& sequence, const AppendExtras& extras = {});

}  // namespace fathom
