// One call of attention on the CPU: its operands, and the steps that threads take through its plan.
// attention_cpu.cc only.
#pragma once

#include <limits>

#include "ops/attention/attention_block.h"
#include "ops/attention/attention_plan.h"

namespace fathom {

static_assert(kBlockKeys == kKeyBlock);
inline constexpr float kNoMaximum = -std::numeric_limits<float>::infinity();

// A pool of keys or values, read a block at a time.
struct KvPool {
  explicit KvPool(const Tensor& t);
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
struct KeyUnit {
  int64_t block, kv_head;
};
inline constexpr int64_t kMostUnits = 48;

// What one thread needs besides its operands.
struct AttentionWork {
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
  AttentionWork(float* memory, int64_t dim, int64_t vectors)
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
                const AttentionPlan& plan, float* rounded, Tensor& out);

  // Rounds queries where f16 keys ask for it: before run_units. run_tile does it for itself.
  void round_queries(int64_t row, int64_t head, int64_t heads) const {
    const int64_t at = (row * heads_ + head) * dim_;
    if (rounded_) block_.round_queries(q_ + at, heads * dim_, rounded_ + at);
  }
  // A tile and a KV head through all its blocks.
  void run_tile(const QueryTile& tile, int64_t kv_head, AttentionWork& work) const;
  // The units [begin, end) of a tile, of which each block has one for every KV head; their partial results
  // are left in `partials`, `partial_sums` (block, row, head).
  void run_units(const QueryTile& tile, int64_t begin, int64_t end, AttentionWork& work, Partial* partials,
                 float* partial_sums) const;
  // Joins the blocks' partial results of one row and head.
  void join(const QueryTile& tile, int32_t row, int64_t head, const Partial* partials,
            const float* partial_sums, AttentionWork& work) const;

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
    int64_t n;
    const float* query[kMostQueries];
    const QueryRow* row[kMostQueries];
  };
  // The keys of one block that they see, each its own; [low, high): that any of them sees.
  struct Ranges {
    int64_t begin[kMostQueries], end[kMostQueries], low, high;
  };
  void unpack(int64_t begin, int64_t end, float* to, BlockRows* rows, int* type) const;
  Block open_block(const QueryTile& tile, KeyUnit unit, AttentionWork& work, float* bias) const;
  Group group_of(const QueryTile& tile, int64_t first, int64_t kv_head) const;
  static Ranges ranges_of(const Group& group, const Block& block);
  template <class UnitAt, class Sink>
  void attend(const QueryTile& tile, int64_t begin, int64_t end, UnitAt&& unit_at, AttentionWork& work,
              Sink&& sink) const;
  void weigh_keys(const Block& block, const Ranges& ranges, int64_t n, float* scores, Partial* partial) const;
  void weigh_values(const Block& block, const Ranges& ranges, int64_t n, const float* weights,
                    float* sums) const;

  int64_t vectors(const QueryTile& tile) const { return (tile.last - tile.first) * group_; }

  const AttentionBlock& block_;
  const KvView& kv_;
  KvPool keys_, values_;
  AttentionParams params_;
  const AttentionPlan& plan_;
  const float* q_;
  const float* queries_;  // q_, or rounded_
  float* rounded_;        // null: f16 keys only
  float* out_;
  int64_t heads_, dim_, kv_heads_, group_;
};

}  // namespace fathom
