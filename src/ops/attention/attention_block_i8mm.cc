// As attention_block_dotprod.cc, with f16 keys and values multiplied as they are (FMLAL: halves times halves
// into floats).
#if defined(__GNUC__) && !defined(__clang__)
// Scheduling before register allocation lengthens the loads' lives until the tiles' sums spill: a third
// slower.
#pragma GCC optimize("no-schedule-insns")
#endif
#include "ops/attention/attention_block_body.h"

namespace fathom {
namespace {

struct FusedHalves {
  using Factor = float16x8_t;
  static float16x8_t at(const uint8_t* row, int64_t d) { return vreinterpretq_f16_u8(vld1q_u8(row + 2 * d)); }
  static float16x8_t query(const float16_t* q) { return vld1q_f16(q); }
  static float16x8_t weight(const float16_t* p) { return vld1q_dup_f16(p); }
  static F8 fused(float16x8_t a, float16x8_t row, F8 sum) {
    return {vfmlalq_low_f16(sum.lo, row, a), vfmlalq_high_f16(sum.hi, row, a)};
  }
};

constexpr int64_t kMostDim = 256;

// Exact: the caller has rounded them.
void to_halves(const float* from, int64_t n, float16_t* to) {
  for (int64_t i = 0; i < n; i += 8) store_half(to + i, load(from + i));
}

void half_scores(const float* const* q, int64_t n, int64_t dim, BlockRows keys, int64_t begin, int64_t end,
                 float* out) {
  float16_t halves[kMostQueries][kMostDim];
  const float16_t* rows[kMostQueries];
  for (int64_t i = 0; i < n; ++i) {
    to_halves(q[i], dim, halves[i]);
    rows[i] = halves[i];
  }
  scores<FusedHalves>(rows, n, dim, keys, begin, end, out);
}

// Key E of eight, whose weights are the lanes of w: a lane is multiplied with as it is, where one key's
// weight would be spread over a register first.
template <int NQ, int NC, int E>
[[gnu::always_inline]] inline void add_key(const float16x8_t* w, const uint8_t* row, int64_t d,
                                           F8 (*sum)[NC]) {
  FATHOM_UNROLL
  for (int c = 0; c < NC; ++c) {
    const float16x8_t v = FusedHalves::at(row, d + 8 * c);
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) {
      sum[i][c].lo = vfmlalq_laneq_low_f16(sum[i][c].lo, v, w[i], E);
      sum[i][c].hi = vfmlalq_laneq_high_f16(sum[i][c].hi, v, w[i], E);
    }
  }
}

// Keys in whole eights, in order: as value_tile.
template <int NQ>
void eight_keys(const float16_t* p, int64_t dim, BlockRows rows, int64_t begin, int64_t end, float* sums) {
  constexpr int kChunks = 4;
  for (int64_t d = 0; d < dim; d += 8 * kChunks) {
    F8 sum[NQ][kChunks];
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) {
      FATHOM_UNROLL
      for (int c = 0; c < kChunks; ++c) sum[i][c] = load(sums + i * dim + d + 8 * c);
    }
    const uint8_t* row[8];
    find_rows<8>(rows, begin, row);
    for (int64_t j = begin; j < end; j += 8) {
      const uint8_t* next[8];
      find_rows<8>(rows, j + 16 <= end ? j + 8 : j, next);
      float16x8_t w[NQ];
      FATHOM_UNROLL
      for (int i = 0; i < NQ; ++i) w[i] = vld1q_f16(p + i * kBlockKeys + j);
      add_key<NQ, kChunks, 0>(w, row[0], d, sum);
      add_key<NQ, kChunks, 1>(w, row[1], d, sum);
      add_key<NQ, kChunks, 2>(w, row[2], d, sum);
      add_key<NQ, kChunks, 3>(w, row[3], d, sum);
      add_key<NQ, kChunks, 4>(w, row[4], d, sum);
      add_key<NQ, kChunks, 5>(w, row[5], d, sum);
      add_key<NQ, kChunks, 6>(w, row[6], d, sum);
      add_key<NQ, kChunks, 7>(w, row[7], d, sum);
      FATHOM_UNROLL
      for (int i = 0; i < 8; ++i) row[i] = next[i];
    }
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) {
      FATHOM_UNROLL
      for (int c = 0; c < kChunks; ++c) store(sums + i * dim + d + 8 * c, sum[i][c]);
    }
  }
}

void half_values(const float* p, int64_t n, int64_t dim, BlockRows rows, int64_t begin, int64_t end,
                 float* sums) {
  float16_t halves[kMostQueries * kBlockKeys];
  to_halves(p, n * kBlockKeys, halves);
  const int64_t eights = dim % 32 == 0 ? begin + (end - begin) / 8 * 8 : begin;
  if (eights > begin) {
    (n == 1 ? eight_keys<1> : n == 2 ? eight_keys<2> : eight_keys<3>)(halves, dim, rows, begin, eights, sums);
  }
  if (eights < end) values<FusedHalves>(halves, n, dim, rows, eights, end, sums);
}

constexpr AttentionBlock fused_table() {
  AttentionBlock table = kTable;
  table.unpack_from[1] = kNever;
  table.scores[1] = half_scores;
  table.values[1] = half_values;
  return table;
}

}  // namespace

const AttentionBlock kAttentionBlockI8mm = fused_table();

}  // namespace fathom
