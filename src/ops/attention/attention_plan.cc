#include "ops/attention/attention_plan.h"

#include <algorithm>

#include "base/format.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

template <class T>
std::span<T> arena_span(Context& ctx, int64_t n) {
  return {static_cast<T*>(ctx.arena().allocate(static_cast<size_t>(n) * sizeof(T))), static_cast<size_t>(n)};
}

// Kept rows sorted by sequence, order kept within one: counts, then places. starts[s] is where sequence s
// begins.
std::span<QueryRow> group_by_sequence(Context& ctx, const KeptRows& kept, const int32_t* sequence,
                                      std::span<int32_t> starts) {
  const auto sequences = static_cast<int64_t>(starts.size()) - 1;
  std::fill(starts.begin(), starts.end(), 0);
  for (int64_t i = 0; i < kept.count; ++i) {
    const int32_t s = sequence[kept[i]];
    if (s < 0 || s >= sequences) fail("attention: sequence must be in [0, {}), got {}", sequences, s);
    ++starts[static_cast<size_t>(s) + 1];
  }
  for (size_t s = 1; s < starts.size(); ++s) starts[s] += starts[s - 1];
  const std::span<QueryRow> rows = arena_span<QueryRow>(ctx, kept.count);
  for (int64_t i = 0; i < kept.count; ++i) {
    const auto s = static_cast<size_t>(sequence[kept[i]]);
    rows[static_cast<size_t>(starts[s]++)] = {static_cast<int32_t>(i), 0, 0};
  }
  std::copy_backward(starts.begin(), starts.end() - 1,
                     starts.end());  // each had moved to the next one's beginning
  starts[0] = 0;
  return rows;
}

void find_visible(QueryRow& row, int32_t position, std::span<const int32_t> positions, int32_t window) {
  const auto first_above = [&](int64_t limit) {
    return static_cast<int32_t>(std::upper_bound(positions.begin(), positions.end(), limit) -
                                positions.begin());
  };
  row.end = first_above(position);
  row.begin = window > 0 ? std::min(row.end, first_above(int64_t{position} - window)) : 0;
}

QueryTile make_tile(std::span<const QueryRow> rows, int32_t sequence, int32_t first, int32_t last) {
  int32_t begin = INT32_MAX, end = 0;
  int64_t cost = 0;
  for (int32_t i = first; i < last; ++i) {
    const QueryRow& row = rows[static_cast<size_t>(i)];
    if (row.begin == row.end) continue;
    begin = std::min(begin, row.begin);
    end = std::max(end, row.end);
    cost += row.end - row.begin;
  }
  QueryTile tile{sequence, first, last, 0, 0, 0, cost};
  if (cost == 0) return tile;
  tile.block_begin = begin / static_cast<int32_t>(kKeyBlock);
  tile.block_end = (end - 1) / static_cast<int32_t>(kKeyBlock) + 1;
  return tile;
}

// Bytes of the entries that the rows of one sequence see.
uint64_t bytes_seen(std::span<const QueryRow> rows, const KvView& kv) {
  int32_t begin = INT32_MAX, end = 0;
  for (const QueryRow& row : rows) {
    if (row.begin == row.end) continue;
    begin = std::min(begin, row.begin);
    end = std::max(end, row.end);
  }
  if (end <= begin) return 0;
  const int64_t entry = row_bytes(kv.k.dtype(), kv.k.dim(2)) + row_bytes(kv.v.dtype(), kv.v.dim(2));
  return static_cast<uint64_t>((end - begin) * kv.k.dim(1) * entry);
}

// Large tiles reuse a converted block of keys most; smaller ones when that leaves too few to share out.
int64_t choose_tile_rows(int64_t rows, int64_t kv_heads, PlanOptions options) {
  constexpr int64_t kFewest = 16;
  int64_t tile = std::max<int64_t>(1, options.most_tile_rows);
  while (tile > kFewest && (rows + tile - 1) / tile * kv_heads < options.parts) tile /= 2;
  return tile;
}

}  // namespace

AttentionPlan plan_attention(Context& ctx, const KvView& kv, const KeptRows& kept, const Tensor& positions,
                             const Tensor& sequence, int32_t window, PlanOptions options) {
  const int64_t sequences = kv.entries.dim(0), capacity = kv.entries.dim(1);
  const std::span<int32_t> starts = arena_span<int32_t>(ctx, sequences + 1);
  const std::span<QueryRow> rows = group_by_sequence(ctx, kept, sequence.data<int32_t>(), starts);
  const std::span<QueryTile> tiles = arena_span<QueryTile>(ctx, kept.count);
  const auto tile_rows = static_cast<int32_t>(choose_tile_rows(kept.count, kv.k.dim(1), options));
  AttentionPlan plan;
  size_t count = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    const int32_t first = starts[static_cast<size_t>(s)], last = starts[static_cast<size_t>(s) + 1];
    if (first == last) continue;
    const int32_t length = kv.lengths.data<int32_t>()[s];
    if (length < 0 || length > capacity)
      fail("attention: sequence {} has {} entries of {}", s, length, capacity);
    const std::span<const int32_t> entry_positions(kv.positions.data<int32_t>() + s * capacity,
                                                   static_cast<size_t>(length));
    for (int32_t i = first; i < last; ++i) {
      QueryRow& row = rows[static_cast<size_t>(i)];
      find_visible(row, positions.data<int32_t>()[kept[row.row]], entry_positions, window);
    }
    plan.cache_bytes +=
        bytes_seen(rows.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)), kv);
    for (int32_t i = first; i < last; i += tile_rows) {
      QueryTile tile = make_tile(rows, static_cast<int32_t>(s), i, std::min(last, i + tile_rows));
      tile.partials = plan.partials;
      const int64_t blocks = tile.block_end - tile.block_begin;
      plan.partials += blocks * (tile.last - tile.first);
      plan.blocks += blocks;
      plan.pairs += tile.cost;
      plan.most_rows = std::max<int64_t>(plan.most_rows, tile.last - tile.first);
      tiles[count++] = tile;
    }
  }
  plan.rows = rows;
  plan.tiles = tiles.first(count);
  return plan;
}

}  // namespace fathom
