// The source of every AttentionBlock table; included once by each attention_block_<isa>.cc.
#pragma once

#include "ops/attention/attention_block.h"
#include "ops/kernels/simd_math.h"

namespace fathom {
namespace {

// How a pool's rows are read: elements [d, d + 8) of a row, exact in f32, and what they are multiplied with.
struct FloatFactors {  // queries and weights stay f32
  using Factor = F8;
  static F8 query(const float* q) { return load(q); }
  static F8 weight(const float* p) { return broadcast(*p); }
  static F8 fused(F8 a, F8 row, F8 sum) { return fma(a, row, sum); }
};
struct LoadF32 : FloatFactors {
  static F8 at(const uint8_t* row, int64_t d) { return load(reinterpret_cast<const float*>(row) + d); }
};
struct LoadF16 : FloatFactors {
  static F8 at(const uint8_t* row, int64_t d) { return load_half(row + 2 * d); }
};
struct LoadBF16 : FloatFactors {
  static F8 at(const uint8_t* row, int64_t d) { return load_bfloat(row + 2 * d); }
};
struct LoadQ8_0 : FloatFactors {  // blocks of 32: a half scale, then the int8
  static F8 at(const uint8_t* row, int64_t d) {
    const uint8_t* block = row + d / 32 * 34;
    return mul(broadcast_half(block), load_int8(block + 2 + d % 32));
  }
};

// Where the rows [j, j + N) of a block begin.
template <int N>
[[gnu::always_inline]] inline void find_rows(BlockRows rows, int64_t j, const uint8_t** at) {
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) at[i] = rows.base + rows.slots[j + i] * rows.step;
}

// The tile of a register-blocked product: NQ query vectors by NK keys.
template <int NQ, int NK, class Load, class Query>
[[gnu::always_inline]] inline void score_tile(const Query* const* q, int64_t dim, const uint8_t* const* key,
                                              float* scores) {
  F8 sum[NQ][NK];
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    FATHOM_UNROLL
    for (int j = 0; j < NK; ++j) sum[i][j] = broadcast(0.0f);
  }
  for (int64_t d = 0; d < dim; d += 8) {
    typename Load::Factor query[NQ];
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) query[i] = Load::query(q[i] + d);
    FATHOM_UNROLL
    for (int j = 0; j < NK; ++j) {
      const auto k = Load::at(key[j], d);
      FATHOM_UNROLL
      for (int i = 0; i < NQ; ++i) sum[i][j] = Load::fused(query[i], k, sum[i][j]);
    }
  }
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    float* out = scores + i * kBlockKeys;
    if constexpr (NK == 4) {
      store_sums(out, sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
    } else {
      FATHOM_UNROLL
      for (int j = 0; j < NK; ++j) out[j] = sum_lanes(sum[i][j]);
    }
  }
}

template <int NQ, class Load, class Query>
void score_keys(const Query* const* q, int64_t dim, BlockRows keys, int64_t begin, int64_t end,
                float* scores) {
  constexpr int kKeys = 4;
  int64_t j = begin;
  const uint8_t* key[kKeys];
  if (j + kKeys <= end) find_rows<kKeys>(keys, j, key);
  for (; j + kKeys <= end; j += kKeys) {
    // The next tile's addresses, which wait for their slots, before this one's products.
    const uint8_t* next[kKeys];
    find_rows<kKeys>(keys, j + 2 * kKeys <= end ? j + kKeys : j, next);
    score_tile<NQ, kKeys, Load>(q, dim, key, scores + j);
    FATHOM_UNROLL
    for (int i = 0; i < kKeys; ++i) key[i] = next[i];
  }
  for (; j < end; ++j) {
    find_rows<1>(keys, j, key);
    score_tile<NQ, 1, Load>(q, dim, key, scores + j);
  }
}

template <class Load, class Query = float>
void scores(const Query* const* q, int64_t n, int64_t dim, BlockRows keys, int64_t begin, int64_t end,
            float* out) {
  switch (n) {
    case 1:
      return score_keys<1, Load>(q, dim, keys, begin, end, out);
    case 2:
      return score_keys<2, Load>(q, dim, keys, begin, end, out);
    default:
      return score_keys<3, Load>(q, dim, keys, begin, end, out);
  }
}

// Dimensions [d, d + 8 NC) of the weighted sums of NQ query vectors.
template <int NQ, int NC, class Load, class Weight>
[[gnu::always_inline]] inline void value_tile(const Weight* p, int64_t dim, BlockRows values, int64_t begin,
                                              int64_t end, int64_t d, float* sums) {
  F8 sum[NQ][NC];
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) sum[i][c] = load(sums + i * dim + d + 8 * c);
  }
  for (int64_t j = begin; j < end; ++j) {
    const uint8_t* row = values.base + values.slots[j] * values.step;
    typename Load::Factor weight[NQ];
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) weight[i] = Load::weight(p + i * kBlockKeys + j);
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) {
      const auto v = Load::at(row, d + 8 * c);
      FATHOM_UNROLL
      for (int i = 0; i < NQ; ++i) sum[i][c] = Load::fused(weight[i], v, sum[i][c]);
    }
  }
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) store(sums + i * dim + d + 8 * c, sum[i][c]);
  }
}

template <int NQ, class Load, class Weight>
void value_sums(const Weight* p, int64_t dim, BlockRows values, int64_t begin, int64_t end, float* sums) {
  constexpr int kChunks = 4;
  int64_t d = 0;
  for (; d + 8 * kChunks <= dim; d += 8 * kChunks) {
    value_tile<NQ, kChunks, Load>(p, dim, values, begin, end, d, sums);
  }
  for (; d < dim; d += 8) value_tile<NQ, 1, Load>(p, dim, values, begin, end, d, sums);
}

template <class Load, class Weight = float>
void values(const Weight* p, int64_t n, int64_t dim, BlockRows rows, int64_t begin, int64_t end,
            float* sums) {
  switch (n) {
    case 1:
      return value_sums<1, Load>(p, dim, rows, begin, end, sums);
    case 2:
      return value_sums<2, Load>(p, dim, rows, begin, end, sums);
    default:
      return value_sums<3, Load>(p, dim, rows, begin, end, sums);
  }
}

template <class Load>
void unpack(BlockRows rows, int64_t dim, int64_t begin, int64_t end, float* out) {
  for (int64_t j = begin; j < end; ++j) {
    const uint8_t* row = rows.base + rows.slots[j] * rows.step;
    for (int64_t d = 0; d < dim; d += 8) store(out + j * dim + d, Load::at(row, d));
  }
}

// N rows of scores together: one row's chain of dependent steps leaves the units idle.
template <int N>
void softmax_rows(float* scores, int64_t begin, int64_t end, ScoreRule rule, Partial* partial) {
  const float lowest = -__builtin_inff();
  const int64_t first = begin / 8 * 8, last = (end + 7) / 8 * 8;
  float scale = rule.scale;
  if (rule.soft_cap > 0 || rule.bias) {
    const F8 cap = broadcast(rule.soft_cap);
    for (int i = 0; i < N; ++i) {
      for (int64_t j = first; j < last; j += 8) {
        F8 x = mul(load(scores + i * kBlockKeys + j), broadcast(scale));
        if (rule.soft_cap > 0) x = mul(cap, tanh(div(x, cap)));
        if (rule.bias) x = add(x, load(rule.bias + j));
        store(scores + i * kBlockKeys + j, x);
      }
    }
    scale = 1.0f;
  }
  for (int i = 0; i < N; ++i) {
    float* row = scores + i * kBlockKeys;
    for (int64_t j = first; j < begin; ++j) row[j] = lowest;
    for (int64_t j = end; j < last; ++j) row[j] = lowest;
  }
  F8 largest[N], shift[N], sum[N];
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) largest[i] = sum[i] = broadcast(lowest);
  for (int64_t j = first; j < last; j += 8) {
    FATHOM_UNROLL
    for (int i = 0; i < N; ++i) largest[i] = max(largest[i], load(scores + i * kBlockKeys + j));
  }
  scale *= 1.44269504f;  // powers of two from here on
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) {
    partial[i].max = max_lane(largest[i]) * scale;
    // Nothing to see: any number instead of −inf − −inf; the row has no meaning then.
    shift[i] = broadcast(partial[i].max == lowest ? 0.0f : -partial[i].max);
    sum[i] = broadcast(0.0f);
  }
  const F8 factor = broadcast(scale);
  for (int64_t j = first; j < last; j += 8) {
    F8 p[N];
    FATHOM_UNROLL
    for (int i = 0; i < N; ++i) p[i] = fma(load(scores + i * kBlockKeys + j), factor, shift[i]);
    exp2_below_zero<N>(p);  // above 0 at most by the rounding of the maximum
    if (rule.half_weights) {
      FATHOM_UNROLL
      for (int i = 0; i < N; ++i) p[i] = round_to_half(p[i]);
    }
    FATHOM_UNROLL
    for (int i = 0; i < N; ++i) {
      store(scores + i * kBlockKeys + j, p[i]);
      sum[i] = add(sum[i], p[i]);
    }
  }
  FATHOM_UNROLL
  for (int i = 0; i < N; ++i) {
    partial[i].sum = sum_lanes(sum[i]);
    // The maximum may have passed a NaN by; without it, a row of NaNs looks like a row without keys.
    if (partial[i].sum != partial[i].sum) partial[i].max = partial[i].sum;
  }
}

void softmax(float* scores, int64_t n, int64_t begin, int64_t end, ScoreRule rule, Partial* partial) {
  switch (n) {
    case 1:
      return softmax_rows<1>(scores, begin, end, rule, partial);
    case 2:
      return softmax_rows<2>(scores, begin, end, rule, partial);
    default:
      return softmax_rows<3>(scores, begin, end, rule, partial);
  }
}

void merge(Partial* totals, float* total_sums, const Partial* next, const float* next_sums, int64_t n,
           int64_t dim) {
  float weight[8] = {};  // of what came before, then of the next block
  static_assert(2 * kMostQueries <= 8);
  for (int64_t i = 0; i < n; ++i) {
    const float top = totals[i].max > next[i].max ? totals[i].max : next[i].max;
    weight[i] = totals[i].max - top;
    weight[kMostQueries + i] = next[i].max - top;
  }
  store(weight, exp2_below_zero(load(weight)));
  for (int64_t i = 0; i < n; ++i, total_sums += dim, next_sums += dim) {
    if (next[i].max == -__builtin_inff()) continue;
    const F8 before = broadcast(weight[i]), more = broadcast(weight[kMostQueries + i]);
    totals[i].max = totals[i].max > next[i].max ? totals[i].max : next[i].max;
    totals[i].sum = __builtin_fmaf(next[i].sum, weight[kMostQueries + i], totals[i].sum * weight[i]);
    for (int64_t d = 0; d < dim; d += 8) {
      store(total_sums + d, fma(load(next_sums + d), more, mul(load(total_sums + d), before)));
    }
  }
}

// As many merge()s, with the sums in registers: eight blocks at a time, of which n ≤ 8 have something.
struct Joined {
  int64_t n = 0;
  const float* sums[8];
  float before[8] = {}, more[8] = {};
};

Joined weigh_blocks(const Partial* next, const float* sums, int64_t blocks, int64_t stride, int64_t dim,
                    Partial* total) {
  Joined out;
  float block_sum[8];
  for (int64_t b = 0; b < blocks; ++b) {
    const Partial block = next[b * stride];
    if (block.max == -__builtin_inff()) continue;
    const float top = total->max > block.max ? total->max : block.max;
    out.before[out.n] = total->max - top;
    out.more[out.n] = block.max - top;
    out.sums[out.n] = sums + b * stride * dim;
    block_sum[out.n++] = block.sum;
    total->max = top;
  }
  store(out.before, exp2_below_zero(load(out.before)));
  store(out.more, exp2_below_zero(load(out.more)));
  for (int64_t i = 0; i < out.n; ++i)
    total->sum = __builtin_fmaf(block_sum[i], out.more[i], total->sum * out.before[i]);
  return out;
}

template <int NC>
[[gnu::always_inline]] inline void join_tile(const Joined& joined, int64_t d, float* total_sums) {
  F8 sum[NC];
  FATHOM_UNROLL
  for (int c = 0; c < NC; ++c) sum[c] = load(total_sums + d + 8 * c);
  for (int64_t i = 0; i < joined.n; ++i) {
    const F8 before = broadcast(joined.before[i]), more = broadcast(joined.more[i]);
    const float* next = joined.sums[i] + d;
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) sum[c] = fma(load(next + 8 * c), more, mul(sum[c], before));
  }
  FATHOM_UNROLL
  for (int c = 0; c < NC; ++c) store(total_sums + d + 8 * c, sum[c]);
}

void join(const Partial* next, const float* next_sums, int64_t blocks, int64_t stride, int64_t dim,
          Partial* total, float* total_sums) {
  for (int64_t b = 0; b < blocks; b += 8) {
    const Joined joined = weigh_blocks(next + b * stride, next_sums + b * stride * dim,
                                       blocks - b < 8 ? blocks - b : 8, stride, dim, total);
    int64_t d = 0;
    for (; d + 32 <= dim; d += 32) join_tile<4>(joined, d, total_sums);
    for (; d < dim; d += 8) join_tile<1>(joined, d, total_sums);
  }
}

void round_queries(const float* q, int64_t n, float* out) {
  const F8 most = broadcast(65504.0f), least = broadcast(-65504.0f);
  for (int64_t d = 0; d < n; d += 8) {
    const F8 x = load(q + d);
    // What is not finite must not become the largest half: 0 · x makes it a NaN.
    store(out + d, round_to_half(fma(x, broadcast(0.0f), clamp(x, least, most))));
  }
}

void finish(Partial total, const float* sums, int64_t dim, float* out) {
  const F8 share = broadcast(total.max == -__builtin_inff() ? 0.0f : 1.0f / total.sum);
  for (int64_t d = 0; d < dim; d += 8) store(out + d, mul(load(sums + d), share));
}

constexpr int64_t kNever = INT64_MAX;

constexpr AttentionBlock kTable{
    .unpack_from = {kNever, 5, 7, 4},
    .scores = {scores<LoadF32>, scores<LoadF16>, scores<LoadBF16>, scores<LoadQ8_0>},
    .softmax = softmax,
    .values = {values<LoadF32>, values<LoadF16>, values<LoadBF16>, values<LoadQ8_0>},
    .unpack = {unpack<LoadF32>, unpack<LoadF16>, unpack<LoadBF16>, unpack<LoadQ8_0>},
    .round_queries = round_queries,
    .merge = merge,
    .join = join,
    .finish = finish,
};
// A call opens many blocks of one group of queries over one block of scratch: none of them may be unpacked
// there.
static_assert(kTable.unpack_from[1] > kMostQueries && kTable.unpack_from[2] > kMostQueries &&
              kTable.unpack_from[3] > kMostQueries);

}  // namespace
}  // namespace fathom
