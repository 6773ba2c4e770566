// Attention on the CPU: a plan of tiles (attention_plan.h), the arithmetic of one key block
// (attention_block.h), a call's steps (attention_call.h), and here the two ways of going through the blocks.
// Many tiles: a thread takes a tile and a KV head through all its blocks. Few (decoding at a long context):
// threads share the blocks, leave partial results, and merge them in block order. The merged operations are
// the same ones in the same order, so both ways give the same bits.
#include <algorithm>

#include "ops/attention/attention_call.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

// Tiles × KV heads shared out: each to the thread with the least to do so far, the last tiles (of a causal
// sequence the dearest) first. owner[tile · KV heads + head] is the thread.
void share_out(const AttentionPlan& plan, int64_t kv_heads, std::span<int64_t> loads, int32_t* owner) {
  std::fill(loads.begin(), loads.end(), 0);
  for (auto item = static_cast<int64_t>(plan.tiles.size()) * kv_heads - 1; item >= 0; --item) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += plan.tiles[static_cast<size_t>(item / kv_heads)].cost + 1;
    owner[item] = static_cast<int32_t>(least - loads.begin());
  }
}

template <class T>
T* arena_array(Context& ctx, int64_t n) {
  return static_cast<T*>(ctx.arena().allocate(static_cast<size_t>(n) * sizeof(T)));
}

// One thread's share of the (tile, block, KV head) triples, in that order: neighbours in memory go to one
// thread.
void run_units(const AttentionCall& call, const AttentionPlan& plan, int64_t kv_heads, Range part,
               AttentionWork& work, Partial* partials, float* partial_sums) {
  int64_t at = 0;
  for (const QueryTile& tile : plan.tiles) {
    const int64_t units = (tile.block_end - tile.block_begin) * kv_heads;
    call.run_units(tile, std::max<int64_t>(0, part.begin - at), std::min(units, part.end - at), work,
                   partials, partial_sums);
    at += units;
  }
}

void join_blocks(const AttentionCall& call, const AttentionPlan& plan, int64_t heads, int thread, int threads,
                 AttentionWork& work, const Partial* partials, const float* partial_sums) {
  for (const QueryTile& tile : plan.tiles) {
    const Range part = split_evenly((tile.last - tile.first) * heads, thread, threads);
    for (int64_t i = part.begin; i < part.end; ++i) {
      call.join(tile, tile.first + static_cast<int32_t>(i / heads), i % heads, partials, partial_sums, work);
    }
  }
}

}  // namespace

// Rows of `out` past the count are not written.
void attention_kernel(CpuBackend dev, Context& ctx, const Tensor& q, const KvView& kv, const RowSet& queries,
                      const Tensor& positions, const Tensor& sequence, AttentionParams params, Tensor& out) {
  const KeptRows kept(queries);
  if (kept.count == 0) return;
  const ArenaScope scope(ctx);
  const int64_t heads = q.dim(1), dim = q.dim(2), kv_heads = kv.k.dim(1), group = heads / kv_heads;
  const int team = dev.pool.threads();
  const AttentionPlan plan =
      plan_attention(ctx, kv, kept, positions, sequence, params.window,
                     {.most_tile_rows = std::min<int64_t>(64, 256 / group), .parts = 8 * team});
  float* rounded = kv.k.dtype() == DType::kF16 ? arena_array<float>(ctx, kept.count * heads * dim) : nullptr;
  const AttentionCall call(dev, q, kv, params, plan, rounded, out);
  dev.counters.add(
      {.madds = static_cast<uint64_t>(plan.pairs * heads * dim * 2), .cache_bytes = plan.cache_bytes});

  // Some microseconds of work wake nobody.
  constexpr int64_t kWorthThreads = 100'000;
  const int threads = plan.pairs * heads * dim * 2 < kWorthThreads ? 1 : team;
  const auto items = static_cast<int64_t>(plan.tiles.size()) * kv_heads;
  constexpr int64_t kMostSplitRows = 64;
  const bool split = threads > 1 && items < 4 * threads && kept.count <= kMostSplitRows && plan.blocks > 1;

  const int64_t vectors = plan.most_rows * group, floats = AttentionWork::floats(dim, vectors);
  float* memory = arena_array<float>(ctx, floats * threads);
  int32_t* owner = arena_array<int32_t>(ctx, items);
  share_out(plan, kv_heads, {arena_array<int64_t>(ctx, threads), static_cast<size_t>(threads)}, owner);
  Partial* partials = split ? arena_array<Partial>(ctx, plan.partials * heads) : nullptr;
  float* partial_sums = split ? arena_array<float>(ctx, plan.partials * heads * dim) : nullptr;

  for (int64_t row = 0; split && row < kept.count; ++row) call.round_queries(row, 0, heads);
  const auto work = [&](int thread) {
    AttentionWork space(memory + thread * floats, dim, vectors);
    if (split) {
      run_units(call, plan, kv_heads, split_evenly(plan.blocks * kv_heads, thread, threads), space, partials,
                partial_sums);
      dev.pool.barrier();
      join_blocks(call, plan, heads, thread, threads, space, partials, partial_sums);
      return;
    }
    for (int64_t item = 0; item < items; ++item) {
      if (owner[item] == thread)
        call.run_tile(plan.tiles[static_cast<size_t>(item / kv_heads)], item % kv_heads, space);
    }
  };
  if (threads == 1) return work(0);
  dev.pool.run(work);
}

}  // namespace fathom
