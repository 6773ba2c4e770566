// As attention_block_dotprod.cc, with f16 keys and values multiplied as they are (FMLAL: halves times halves
// into floats).
#if defined(__GNUC__) && !defined(__clang__)
// Scheduling before register allocation lengthens the loads' lives until the tiles' sums spill: a third
// slower.
#pragma GCC optimize("no-schedule-insns")
#endif
#include "ops/attention_block_body.h"

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

void half_values(const float* p, int64_t n, int64_t dim, BlockRows rows, int64_t begin, int64_t end,
                 float* sums) {
  float16_t halves[kMostQueries * kBlockKeys];
  to_halves(p, n * kBlockKeys, halves);
  values<FusedHalves>(halves, n, dim, rows, begin, end, sums);
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
