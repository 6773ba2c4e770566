// Attention of a few query vectors over one block of keys: the part that is written for each instruction set.
// Plain types only: files built with ISA flags include this.
//
// The definition that every table follows, bit for bit, for one query vector and one block:
//   score_j = sum_lanes(fma chain over head_dim, eight lanes wide); scaled, capped, biased
//   m = max score_j over the visible keys; p_j = exp(score_j − m)
//   s = sum_lanes(p added eight keys at a time); a_d = fma chain of p_j · v_j[d] over the visible keys in
//   order
// and blocks join in order by merge(). No term depends on which other queries are computed beside it.
// With f16 keys q is rounded to f16 first, with f16 values p_j is: so instructions that multiply halves into
// floats (which spare the conversion of every key and value) give the bits of an f32 fma, and every table can
// follow.
#pragma once

#include <cstdint>

namespace fathom {

inline constexpr int kCacheTypes = 4;  // f32, f16, bf16, q8_0, in this order
inline constexpr int64_t kBlockKeys = 64;
inline constexpr int64_t kMostQueries = 3;  // query vectors in one call: 3 × 4 keys fill the registers

// Where the keys (or values) of one block and KV head lie: key j at base + slots[j] · step.
struct BlockRows {
  const uint8_t* base;
  int64_t step;  // bytes
  const int32_t* slots;
};

struct ScoreRule {
  float scale, soft_cap;
  const float* bias;  // of the block's keys, 64 readable; null: none
  bool half_weights;  // round the probabilities to f16
};

struct Partial {
  float max;  // of the scores · log₂ e; −inf: nothing visible, the rest has no meaning
  float sum;
};

struct AttentionBlock {
  int64_t unpack_from[kCacheTypes];  // from this many query vectors on, unpacking a block to f32 first pays
  // scores[64 i + j] = q[i] · key j for j in [begin, end), i < n ≤ kMostQueries.
  void (*scores[kCacheTypes])(const float* const* q, int64_t n, int64_t dim, BlockRows keys, int64_t begin,
                              int64_t end, float* scores);
  // Scores to probabilities, in place, for the keys [begin, end) of n ≤ kMostQueries query vectors.
  void (*softmax)(float* scores, int64_t n, int64_t begin, int64_t end, ScoreRule rule, Partial* partial);
  // sums[dim i + d] += Σ p[64 i + j] · v_j[d], j in [begin, end) in order, i < n ≤ kMostQueries.
  void (*values[kCacheTypes])(const float* p, int64_t n, int64_t dim, BlockRows values, int64_t begin,
                              int64_t end, float* sums);
  // out[dim j] = row j as f32, j in [begin, end).
  void (*unpack[kCacheTypes])(BlockRows rows, int64_t dim, int64_t begin, int64_t end, float* out);
  // n elements of queries, rounded to f16 (too large: to the largest).
  void (*round_queries)(const float* q, int64_t n, float* out);
  // Joins the next block of n ≤ kMostQueries query vectors to what came before: both on the larger maximum.
  void (*merge)(Partial* totals, float* total_sums, const Partial* next, const float* next_sums, int64_t n,
                int64_t dim);
  // As merge() of one query vector with many blocks in order, whose partial results are `stride` apart.
  void (*join)(const Partial* next, const float* next_sums, int64_t blocks, int64_t stride, int64_t dim,
               Partial* total, float* total_sums);
  // out = sums / total.sum, or zeros when nothing was visible.
  void (*finish)(Partial total, const float* sums, int64_t dim, float* out);
};

extern const AttentionBlock kAttentionBlockScalar;
extern const AttentionBlock kAttentionBlockDotprod;  // aarch64
extern const AttentionBlock kAttentionBlockI8mm;     // aarch64
extern const AttentionBlock kAttentionBlockAvx2;     // x86-64

}  // namespace fathom
