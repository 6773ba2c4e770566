// How one attention call is cut into work, from shapes and positions alone. attention_cpu.cc and its plan
// only.
#pragma once

#include <span>

#include "ops/attention/attention.h"
#include "ops/kernels/row_set_cpu.h"

namespace fathom {

// A query row and the entries of its sequence that it sees: [begin, end), since positions ascend.
struct QueryRow {
  int32_t row;  // in q and in the output
  int32_t begin, end;
};

// Neighbouring query rows of one sequence, which share the keys they read.
struct QueryTile {
  int32_t sequence;
  int32_t first, last;             // of the plan's rows
  int32_t block_begin, block_end;  // key blocks that some row sees
  int64_t partials;  // where its (block, row, head) partial results begin, when blocks are split
  int64_t cost;      // pairs of query row and key
};

struct AttentionPlan {
  std::span<const QueryRow> rows;  // grouped by sequence, in row order
  std::span<const QueryTile> tiles;
  int64_t most_rows = 0;     // in a tile
  int64_t pairs = 0;         // visible pairs of query row and key
  int64_t partials = 0;      // (block, row) pairs of all tiles
  int64_t blocks = 0;        // (tile, block) pairs
  uint64_t cache_bytes = 0;  // keys and values read, each once
};

struct PlanOptions {
  int64_t most_tile_rows;  // by the scratch that a tile may take
  int64_t parts;           // threads × what evens out their loads
};

// Memory comes from the context's arena.
AttentionPlan plan_attention(Context& ctx, const KvView& kv, const KeptRows& kept, const Tensor& positions,
                             const Tensor& sequence, int32_t window, PlanOptions options);

}  // namespace fathom
