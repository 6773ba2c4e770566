#include "ops/attention/attention_call.h"

#include <algorithm>

namespace fathom {
namespace {

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

struct Iota {
  int32_t at[kKeyBlock];
  constexpr Iota() : at() {
    for (int32_t i = 0; i < kKeyBlock; ++i) at[i] = i;
  }
};
constexpr Iota kInOrder;  // the slots of an unpacked block

}  // namespace

KvPool::KvPool(const Tensor& t)
    : data(t.data<uint8_t>()),
      head_bytes(row_bytes(t.dtype(), t.dim(2))),
      slot_bytes(head_bytes * t.dim(1)),
      type(cache_type(t.dtype())) {}

AttentionCall::AttentionCall(CpuBackend dev, const Tensor& q, const KvView& kv, AttentionParams params,
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

AttentionCall::Block AttentionCall::open_block(const QueryTile& tile, KeyUnit unit, AttentionWork& work,
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
  Group group{std::min(kMostQueries, vectors(tile) - first), {}, {}};
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
    partial[i] = {kNoMaximum, 0.0f};
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
                           AttentionWork& work, Sink&& sink) const {
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
        const KeyUnit unit = unit_at(at + i);
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

void AttentionCall::run_tile(const QueryTile& tile, int64_t kv_head, AttentionWork& work) const {
  const int64_t count = vectors(tile);
  for (int32_t i = tile.first; i < tile.last; ++i) {
    round_queries(plan_.rows[static_cast<size_t>(i)].row, kv_head * group_, group_);
  }
  std::fill_n(work.totals, count, Partial{kNoMaximum, 0.0f});
  std::fill_n(work.total_sums, count * dim_, 0.0f);
  attend(
      tile, tile.block_begin, tile.block_end,
      [&](int64_t block) {
        return KeyUnit{block, kv_head};
      },
      work,
      [&](KeyUnit, int64_t first, int64_t n, const Partial* partial, const float* sums) {
        if (partial)
          block_.merge(work.totals + first, work.total_sums + first * dim_, partial, sums, n, dim_);
      });
  for (int64_t i = 0; i < count; ++i) {
    const QueryRow& row = plan_.rows[static_cast<size_t>(tile.first + i / group_)];
    const int64_t head = kv_head * group_ + i % group_;
    block_.finish(work.totals[i], work.total_sums + i * dim_, dim_, out_ + (row.row * heads_ + head) * dim_);
  }
}

void AttentionCall::run_units(const QueryTile& tile, int64_t begin, int64_t end, AttentionWork& work,
                              Partial* partials, float* partial_sums) const {
  const int64_t rows = tile.last - tile.first;
  attend(
      tile, begin, end,
      [&](int64_t u) {
        return KeyUnit{tile.block_begin + u / kv_heads_, u % kv_heads_};
      },
      work,
      [&](KeyUnit unit, int64_t vector, int64_t n, const Partial* partial, const float* sums) {
        const int64_t base = tile.partials + (unit.block - tile.block_begin) * rows;
        for (int64_t i = 0; i < n; ++i, ++vector) {
          const int64_t at = (base + vector / group_) * heads_ + unit.kv_head * group_ + vector % group_;
          partials[at] = partial ? partial[i] : Partial{kNoMaximum, 0.0f};
          if (partials[at].max != kNoMaximum) std::copy_n(sums + i * dim_, dim_, partial_sums + at * dim_);
        }
      });
}

void AttentionCall::join(const QueryTile& tile, int32_t row, int64_t head, const Partial* partials,
                         const float* partial_sums, AttentionWork& work) const {
  const int64_t rows = tile.last - tile.first, at = (tile.partials + row - tile.first) * heads_ + head;
  Partial total{kNoMaximum, 0.0f};
  std::fill_n(work.sums, dim_, 0.0f);
  block_.join(partials + at, partial_sums + at * dim_, tile.block_end - tile.block_begin, rows * heads_, dim_,
              &total, work.sums);
  const int64_t out = (plan_.rows[static_cast<size_t>(row)].row * heads_ + head) * dim_;
  block_.finish(total, work.sums, dim_, out_ + out);
}

}  // namespace fathom
