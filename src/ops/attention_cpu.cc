// Attention on the CPU: a plan of tiles (attention_plan.h), the arithmetic of one key block
// (attention_block.h), and here the two ways of going through the blocks. Many tiles: a thread takes a tile
// and a KV head through all its blocks. Few (decoding at a long context): threads share the blocks, leave
// partial results, and merge them in block order. The merged operations are the same ones in the same order,
// so both ways give the same bits.
#include <algorithm>
#include <limits>

#include "ops/attention_block.h"
#include "ops/attention_plan.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

static_assert(kBlockKeys == kKeyBlock);
constexpr float kNothing = -std::numeric_limits<float>::infinity();

const AttentionBlock& attention_block(Isa isa) {
#if defined(__aarch64__)
  if (isa == Isa::kI8mm) return kAttentionBlockI8mm;
  if (isa != Isa::kScalar) return kAttentionBlockDotprod;
#elif defined(__x86_64__)
  if (isa != Isa::kScalar) return kAttentionBlockAvx2;
#endif
  static_cast<void>(isa);
  return kAttentionBlockScalar;
}

constexpr int kHalf = 1;

int cache_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return kHalf;
    case DType::kBF16:
      return 2;
    case DType::kQ8_0:
      return 3;
    default:
      return 0;
  }
}

// A pool of keys or values, read a block at a time.
struct Pool {
  explicit Pool(const Tensor& t)
      : data(t.data<uint8_t>()),
        head_bytes(row_bytes(t.dtype(), t.dim(2))),
        slot_bytes(head_bytes * t.dim(1)),
        type(cache_type(t.dtype())) {}
  BlockRows rows(int64_t head, const int32_t* slots) const {
    return {data + head * head_bytes, slot_bytes, slots};
  }
  const uint8_t* data;
  int64_t head_bytes, slot_bytes;
  int type;
};

// A block of keys and a KV head. So many are taken together, first their keys, then their values: memory
// comes faster in two long streams than in short ones by turns. Only where the query vectors are so few that
// each unit is looked at once.
struct Unit {
  int64_t block, kv_head;
};
constexpr int64_t kMostUnits = 48;

struct Iota {
  int32_t at[kKeyBlock];
  constexpr Iota() : at() {
    for (int32_t i = 0; i < kKeyBlock; ++i) at[i] = i;
  }
};
constexpr Iota kInOrder;  // the slots of an unpacked block

// What one thread needs besides its operands.
struct Workspace {
  float *keys, *values;  // an unpacked block: (64, head_dim) each
  float* scores;         // (kMostUnits, kMostQueries, 64)
  float* sums;           // (kMostQueries, head_dim): one block's
  float* bias;           // (kMostUnits, 64)
  Partial* totals;       // (query vectors of a tile)
  float* total_sums;     // (query vectors of a tile, head_dim)

  static int64_t floats(int64_t dim, int64_t vectors) {
    return (2 * kKeyBlock + kMostQueries) * dim + kMostUnits * (kMostQueries + 1) * kKeyBlock +
           vectors * (dim + 2);
  }
  Workspace(float* memory, int64_t dim, int64_t vectors)
      : keys(memory),
        values(keys + kKeyBlock * dim),
        scores(values + kKeyBlock * dim),
        sums(scores + kMostUnits * kMostQueries * kKeyBlock),
        bias(sums + kMostQueries * dim),
        totals(reinterpret_cast<Partial*>(bias + kMostUnits * kKeyBlock)),
        total_sums(bias + kMostUnits * kKeyBlock + 2 * vectors) {}
};

class AttentionCall {
 public:
  AttentionCall(CpuBackend dev, const Tensor& q, const KvView& kv, AttentionParams params,
                const AttentionPlan& plan, float* rounded, Tensor& out)
      : block_(attention_block(dev.isa)),
        kv_(kv),
        keys_(kv.k),
        values_(kv.v),
        params_(params),
        plan_(plan),
        q_(q.data<float>()),
        queries_(rounded ? rounded : q_),
        rounded_(rounded),
        out_(out.data<float>()),
        heads_(q.dim(1)),
        dim_(q.dim(2)),
        kv_heads_(kv.k.dim(1)),
        group_(heads_ / kv_heads_) {}

  // Rounds queries where f16 keys ask for it: before run_units. run_tile does it for itself.
  void round_queries(int64_t row, int64_t head, int64_t heads) const {
    const int64_t at = (row * heads_ + head) * dim_;
    if (rounded_) block_.round_queries(q_ + at, heads * dim_, rounded_ + at);
  }
  // A tile and a KV head through all its blocks.
  void run_tile(const QueryTile& tile, int64_t kv_head, Workspace& work) const;
  // The units [begin, end) of a tile, of which each block has one for every KV head; their partial results
  // are left in `partials`, `partial_sums` (block, row, head).
  void run_units(const QueryTile& tile, int64_t begin, int64_t end, Workspace& work, Partial* partials,
                 float* partial_sums) const;
  // Joins the blocks' partial results of one row and head.
  void join(const QueryTile& tile, int32_t row, int64_t head, const Partial* partials,
            const float* partial_sums, Workspace& work) const;

 private:
  // The keys and values of one unit, unpacked when that pays.
  struct Block {
    int64_t first;  // entry
    BlockRows keys, values;
    int key_type, value_type;
    ScoreRule rule;
  };
  // Up to kMostQueries query vectors of a tile.
  struct Group {
    int64_t first, n;
    const float* query[kMostQueries];
    const QueryRow* row[kMostQueries];
  };
  // The keys of one block that they see, each its own; [low, high): that any of them sees.
  struct Ranges {
    int64_t begin[kMostQueries], end[kMostQueries], low, high;
  };
  void unpack(int64_t begin, int64_t end, float* to, BlockRows* rows, int* type) const;
  Block open_block(const QueryTile& tile, Unit unit, Workspace& work, float* bias) const;
  Group group_of(const QueryTile& tile, int64_t first, int64_t kv_head) const;
  static Ranges ranges_of(const Group& group, const Block& block);
  template <class UnitAt, class Sink>
  void attend(const QueryTile& tile, int64_t begin, int64_t end, UnitAt&& unit_at, Workspace& work,
              Sink&& sink) const;
  void weigh_keys(const Block& block, const Ranges& ranges, int64_t n, float* scores, Partial* partial) const;
  void weigh_values(const Block& block, const Ranges& ranges, int64_t n, const float* weights,
                    float* sums) const;

  int64_t vectors(const QueryTile& tile) const { return (tile.last - tile.first) * group_; }

  const AttentionBlock& block_;
  const KvView& kv_;
  Pool keys_, values_;
  AttentionParams params_;
  const AttentionPlan& plan_;
  const float* q_;
  const float* queries_;  // q_, or rounded_
  float* rounded_;        // null: f16 keys only
  float* out_;
  int64_t heads_, dim_, kv_heads_, group_;
};

AttentionCall::Block AttentionCall::open_block(const QueryTile& tile, Unit unit, Workspace& work,
                                               float* bias) const {
  const int64_t capacity = kv_.entries.dim(1), first = unit.block * kKeyBlock,
                list = tile.sequence * capacity + first;
  const int64_t count = std::min<int64_t>(kKeyBlock, kv_.lengths.data<int32_t>()[tile.sequence] - first);
  const int32_t* slots = kv_.entries.data<int32_t>() + list;
  Block out{first,
            keys_.rows(unit.kv_head, slots),
            values_.rows(unit.kv_head, slots),
            keys_.type,
            values_.type,
            {params_.scale, params_.soft_cap, nullptr, values_.type == kHalf}};
  if (kv_.bias.defined()) {
    std::copy_n(kv_.bias.data<float>() + list, count, bias);
    out.rule.bias = bias;
  }
  const bool unpack_keys = vectors(tile) >= block_.unpack_from[keys_.type];
  const bool unpack_values = vectors(tile) >= block_.unpack_from[values_.type];
  if (!unpack_keys && !unpack_values) return out;
  int64_t begin = kKeyBlock, end = 0;  // keys that some row sees
  for (int32_t i = tile.first; i < tile.last; ++i) {
    const QueryRow& row = plan_.rows[static_cast<size_t>(i)];
    begin = std::min(begin, std::max<int64_t>(0, row.begin - first));
    end = std::max(end, std::min<int64_t>(count, row.end - first));
  }
  if (unpack_keys) unpack(begin, end, work.keys, &out.keys, &out.key_type);
  if (unpack_values) unpack(begin, end, work.values, &out.values, &out.value_type);
  return out;
}

void AttentionCall::unpack(int64_t begin, int64_t end, float* to, BlockRows* rows, int* type) const {
  block_.unpack[*type](*rows, dim_, begin, end, to);
  *rows = {reinterpret_cast<const uint8_t*>(to), dim_ * static_cast<int64_t>(sizeof(float)), kInOrder.at};
  *type = 0;
}

AttentionCall::Group AttentionCall::group_of(const QueryTile& tile, int64_t first, int64_t kv_head) const {
  Group group{first, std::min(kMostQueries, vectors(tile) - first), {}, {}};
  for (int64_t i = 0; i < group.n; ++i) {
    const int64_t vector = first + i;  // row by row, the heads of the group within
    group.row[i] = &plan_.rows[static_cast<size_t>(tile.first + vector / group_)];
    group.query[i] = queries_ + (group.row[i]->row * heads_ + kv_head * group_ + vector % group_) * dim_;
  }
  return group;
}

AttentionCall::Ranges AttentionCall::ranges_of(const Group& group, const Block& block) {
  Ranges out{{}, {}, kKeyBlock, 0};
  for (int64_t i = 0; i < group.n; ++i) {
    out.begin[i] = std::clamp<int64_t>(group.row[i]->begin - block.first, 0, kKeyBlock);
    out.end[i] = std::clamp<int64_t>(group.row[i]->end - block.first, out.begin[i], kKeyBlock);
    if (out.begin[i] == out.end[i]) continue;
    out.low = std::min(out.low, out.begin[i]);
    out.high = std::max(out.high, out.end[i]);
  }
  return out;
}

void AttentionCall::weigh_keys(const Block& block, const Ranges& ranges, int64_t n, float* scores,
                               Partial* partial) const {
  const int64_t *begin = ranges.begin, *end = ranges.end;
  if (std::all_of(begin, begin + n, [&](int64_t at) { return at == ranges.low; }) &&
      std::all_of(end, end + n, [&](int64_t at) { return at == ranges.high; })) {
    return block_.softmax(scores, n, ranges.low, ranges.high, block.rule, partial);
  }
  for (int64_t i = 0; i < n; ++i) {
    partial[i] = {kNothing, 0.0f};
    if (begin[i] < end[i])
      block_.softmax(scores + i * kKeyBlock, 1, begin[i], end[i], block.rule, partial + i);
  }
}

// Σ p v for each of n query vectors over its own range of keys: together where the ranges overlap, alone at
// the edges, so that each sees its keys in order and no others (0 · infinity of a later key would be NaN).
void AttentionCall::weigh_values(const Block& block, const Ranges& ranges, int64_t n, const float* weights,
                                 float* sums) const {
  const auto weigh = block_.values[block.value_type];
  const int64_t *begin = ranges.begin, *end = ranges.end;
  const auto alone = [&](int64_t i, int64_t from, int64_t to) {
    if (from < to) weigh(weights + i * kKeyBlock, 1, dim_, block.values, from, to, sums + i * dim_);
  };
  std::fill_n(sums, n * dim_, 0.0f);
  const int64_t low = *std::max_element(begin, begin + n), high = *std::min_element(end, end + n);
  if (low >= high) {
    for (int64_t i = 0; i < n; ++i) alone(i, begin[i], end[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) alone(i, begin[i], low);
  weigh(weights, n, dim_, block.values, low, high, sums);
  for (int64_t i = 0; i < n; ++i) alone(i, high, end[i]);
}

// All query vectors of a tile against the units [begin, end):
// sink(unit, first vector, how many, their partials or null for nothing, their sums).
template <class UnitAt, class Sink>
void AttentionCall::attend(const QueryTile& tile, int64_t begin, int64_t end, UnitAt&& unit_at,
                           Workspace& work, Sink&& sink) const {
  const int64_t together = vectors(tile) <= kMostQueries ? kMostUnits : 1;
  const auto scores = [&](int64_t i) { return work.scores + i * kMostQueries * kKeyBlock; };
  Block blocks[kMostUnits];
  for (int64_t at = begin, taken = 0; at < end; at += taken) {
    taken = std::min(together, end - at);
    for (int64_t i = 0; i < taken; ++i)
      blocks[i] = open_block(tile, unit_at(at + i), work, work.bias + i * kKeyBlock);
    for (int64_t vector = 0; vector < vectors(tile); vector += kMostQueries) {
      for (int64_t i = 0; i < taken; ++i) {
        const Group group = group_of(tile, vector, unit_at(at + i).kv_head);
        const Ranges ranges = ranges_of(group, blocks[i]);
        block_.scores[blocks[i].key_type](group.query, group.n, dim_, blocks[i].keys, ranges.low, ranges.high,
                                          scores(i));
      }
      for (int64_t i = 0; i < taken; ++i) {
        const Unit unit = unit_at(at + i);
        const Group group = group_of(tile, vector, unit.kv_head);
        const Ranges ranges = ranges_of(group, blocks[i]);
        Partial partial[kMostQueries];
        if (ranges.low < ranges.high) {
          weigh_keys(blocks[i], ranges, group.n, scores(i), partial);
          weigh_values(blocks[i], ranges, group.n, scores(i), work.sums);
        }
        sink(unit, vector, group.n, ranges.low < ranges.high ? partial : nullptr, work.sums);
      }
    }
  }
}

void AttentionCall::run_tile(const QueryTile& tile, int64_t kv_head, Workspace& work) const {
  const int64_t count = vectors(tile);
  for (int32_t i = tile.first; i < tile.last; ++i) {
    round_queries(plan_.rows[static_cast<size_t>(i)].row, kv_head * group_, group_);
  }
  std::fill_n(work.totals, count, Partial{kNothing, 0.0f});
  std::fill_n(work.total_sums, count * dim_, 0.0f);
  attend(
      tile, tile.block_begin, tile.block_end,
      [&](int64_t block) {
        return Unit{block, kv_head};
      },
      work,
      [&](Unit, int64_t first, int64_t n, const Partial* partial, const float* sums) {
        if (partial)
          block_.merge(work.totals + first, work.total_sums + first * dim_, partial, sums, n, dim_);
      });
  for (int64_t i = 0; i < count; ++i) {
    const QueryRow& row = plan_.rows[static_cast<size_t>(tile.first + i / group_)];
    const int64_t head = kv_head * group_ + i % group_;
    block_.finish(work.totals[i], work.total_sums + i * dim_, dim_, out_ + (row.row * heads_ + head) * dim_);
  }
}

void AttentionCall::run_units(const QueryTile& tile, int64_t begin, int64_t end, Workspace& work,
                              Partial* partials, float* partial_sums) const {
  const int64_t rows = tile.last - tile.first;
  attend(
      tile, begin, end,
      [&](int64_t u) {
        return Unit{tile.block_begin + u / kv_heads_, u % kv_heads_};
      },
      work,
      [&](Unit unit, int64_t vector, int64_t n, const Partial* partial, const float* sums) {
        const int64_t base = tile.partials + (unit.block - tile.block_begin) * rows;
        for (int64_t i = 0; i < n; ++i, ++vector) {
          const int64_t at = (base + vector / group_) * heads_ + unit.kv_head * group_ + vector % group_;
          partials[at] = partial ? partial[i] : Partial{kNothing, 0.0f};
          if (partials[at].max != kNothing) std::copy_n(sums + i * dim_, dim_, partial_sums + at * dim_);
        }
      });
}

void AttentionCall::join(const QueryTile& tile, int32_t row, int64_t head, const Partial* partials,
                         const float* partial_sums, Workspace& work) const {
  const int64_t rows = tile.last - tile.first, at = (tile.partials + row - tile.first) * heads_ + head;
  Partial total{kNothing, 0.0f};
  std::fill_n(work.sums, dim_, 0.0f);
  block_.join(partials + at, partial_sums + at * dim_, tile.block_end - tile.block_begin, rows * heads_, dim_,
              &total, work.sums);
  const int64_t out = (plan_.rows[static_cast<size_t>(row)].row * heads_ + head) * dim_;
  block_.finish(total, work.sums, dim_, out_ + out);
}

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
T* scratch(Context& ctx, int64_t n) {
  return static_cast<T*>(ctx.arena().allocate(static_cast<size_t>(n) * sizeof(T)));
}

// One thread's share of the (tile, block, KV head) triples, in that order: neighbours in memory go to one
// thread.
void run_units(const AttentionCall& call, const AttentionPlan& plan, int64_t kv_heads, Range part,
               Workspace& work, Partial* partials, float* partial_sums) {
  int64_t at = 0;
  for (const QueryTile& tile : plan.tiles) {
    const int64_t units = (tile.block_end - tile.block_begin) * kv_heads;
    call.run_units(tile, std::max<int64_t>(0, part.begin - at), std::min(units, part.end - at), work,
                   partials, partial_sums);
    at += units;
  }
}

void join_blocks(const AttentionCall& call, const AttentionPlan& plan, int64_t heads, int thread, int threads,
                 Workspace& work, const Partial* partials, const float* partial_sums) {
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
  float* rounded = kv.k.dtype() == DType::kF16 ? scratch<float>(ctx, kept.count * heads * dim) : nullptr;
  const AttentionCall call(dev, q, kv, params, plan, rounded, out);
  dev.counters.add(
      {.madds = static_cast<uint64_t>(plan.pairs * heads * dim * 2), .cache_bytes = plan.cache_bytes});

  // Some microseconds of work wake nobody.
  constexpr int64_t kWorthThreads = 100'000;
  const int threads = plan.pairs * heads * dim * 2 < kWorthThreads ? 1 : team;
  const auto items = static_cast<int64_t>(plan.tiles.size()) * kv_heads;
  constexpr int64_t kMostSplitRows = 64;
  const bool split = threads > 1 && items < 4 * threads && kept.count <= kMostSplitRows && plan.blocks > 1;

  const int64_t vectors = plan.most_rows * group, floats = Workspace::floats(dim, vectors);
  float* memory = scratch<float>(ctx, floats * threads);
  int32_t* owner = scratch<int32_t>(ctx, items);
  share_out(plan, kv_heads, {scratch<int64_t>(ctx, threads), static_cast<size_t>(threads)}, owner);
  Partial* partials = split ? scratch<Partial>(ctx, plan.partials * heads) : nullptr;
  float* partial_sums = split ? scratch<float>(ctx, plan.partials * heads * dim) : nullptr;

  for (int64_t row = 0; split && row < kept.count; ++row) call.round_queries(row, 0, heads);
  const auto work = [&](int thread) {
    Workspace space(memory + thread * floats, dim, vectors);
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
