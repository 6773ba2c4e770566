// The source of every AttentionBlock table; included once by each attention_block_<isa>.cc.
#pragma once

#include "ops/attention_block.h"
#include "ops/simd_math.h"

namespace fathom {
namespace {

// Elements [d, d + 8) of a cache row, exact in f32.
struct LoadF32 {
  static F8 at(const uint8_t* row, int64_t d) { return load(reinterpret_cast<const float*>(row) + d); }
};
struct LoadF16 {
  static F8 at(const uint8_t* row, int64_t d) { return load_half(row + 2 * d); }
};
struct LoadBF16 {
  static F8 at(const uint8_t* row, int64_t d) { return load_bfloat(row + 2 * d); }
};
struct LoadQ8_0 {  // blocks of 32: a half scale, then the int8
  static F8 at(const uint8_t* row, int64_t d) {
    const uint8_t* block = row + d / 32 * 34;
    uint16_t scale;
    __builtin_memcpy(&scale, block, sizeof scale);
    return mul(broadcast(half_to_float(scale)), load_int8(block + 2 + d % 32));
  }
};

// The tile of a register-blocked product: NQ query vectors by NK keys.
template <int NQ, int NK, class Load>
inline void score_tile(const float* const* q, int64_t dim, const uint8_t* const* key, float* scores) {
  F8 sum[NQ][NK];
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    FATHOM_UNROLL
    for (int j = 0; j < NK; ++j) sum[i][j] = broadcast(0.0f);
  }
  for (int64_t d = 0; d < dim; d += 8) {
    F8 query[NQ];
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) query[i] = load(q[i] + d);
    FATHOM_UNROLL
    for (int j = 0; j < NK; ++j) {
      const F8 k = Load::at(key[j], d);
      FATHOM_UNROLL
      for (int i = 0; i < NQ; ++i) sum[i][j] = fma(query[i], k, sum[i][j]);
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

template <int NQ, class Load>
void score_keys(const float* const* q, int64_t dim, BlockRows keys, int64_t begin, int64_t end,
                float* scores) {
  constexpr int kKeys = NQ == 4 ? 2 : 4;  // as many sums as the registers hold
  int64_t j = begin;
  for (; j + kKeys <= end; j += kKeys) {
    const uint8_t* key[kKeys];
    FATHOM_UNROLL
    for (int i = 0; i < kKeys; ++i) key[i] = keys.base + keys.slots[j + i] * keys.step;
    score_tile<NQ, kKeys, Load>(q, dim, key, scores + j);
  }
  for (; j < end; ++j) {
    const uint8_t* key = keys.base + keys.slots[j] * keys.step;
    score_tile<NQ, 1, Load>(q, dim, &key, scores + j);
  }
}

template <class Load>
void scores(const float* const* q, int64_t n, int64_t dim, BlockRows keys, int64_t begin, int64_t end,
            float* out) {
  switch (n) {
    case 1:
      return score_keys<1, Load>(q, dim, keys, begin, end, out);
    case 2:
      return score_keys<2, Load>(q, dim, keys, begin, end, out);
    case 3:
      return score_keys<3, Load>(q, dim, keys, begin, end, out);
    default:
      return score_keys<4, Load>(q, dim, keys, begin, end, out);
  }
}

// Dimensions [d, d + 8 NC) of the weighted sums of NQ query vectors.
template <int NQ, int NC, class Load>
inline void value_tile(const float* p, int64_t dim, BlockRows values, int64_t begin, int64_t end, int64_t d,
                       float* sums) {
  F8 sum[NQ][NC];
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) sum[i][c] = load(sums + i * dim + d + 8 * c);
  }
  for (int64_t j = begin; j < end; ++j) {
    const uint8_t* row = values.base + values.slots[j] * values.step;
    F8 weight[NQ];
    FATHOM_UNROLL
    for (int i = 0; i < NQ; ++i) weight[i] = broadcast(p[i * kBlockKeys + j]);
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) {
      const F8 v = Load::at(row, d + 8 * c);
      FATHOM_UNROLL
      for (int i = 0; i < NQ; ++i) sum[i][c] = fma(v, weight[i], sum[i][c]);
    }
  }
  FATHOM_UNROLL
  for (int i = 0; i < NQ; ++i) {
    FATHOM_UNROLL
    for (int c = 0; c < NC; ++c) store(sums + i * dim + d + 8 * c, sum[i][c]);
  }
}

template <int NQ, class Load>
void value_sums(const float* p, int64_t dim, BlockRows values, int64_t begin, int64_t end, float* sums) {
  constexpr int kChunks = NQ == 4 ? 2 : 4;
  int64_t d = 0;
  for (; d + 8 * kChunks <= dim; d += 8 * kChunks) {
    value_tile<NQ, kChunks, Load>(p, dim, values, begin, end, d, sums);
  }
  for (; d < dim; d += 8) value_tile<NQ, 1, Load>(p, dim, values, begin, end, d, sums);
}

template <class Load>
void values(const float* p, int64_t n, int64_t dim, BlockRows rows, int64_t begin, int64_t end, float* sums) {
  switch (n) {
    case 1:
      return value_sums<1, Load>(p, dim, rows, begin, end, sums);
    case 2:
      return value_sums<2, Load>(p, dim, rows, begin, end, sums);
    case 3:
      return value_sums<3, Load>(p, dim, rows, begin, end, sums);
    default:
      return value_sums<4, Load>(p, dim, rows, begin, end, sums);
  }
}

template <class Load>
void unpack(BlockRows rows, int64_t dim, int64_t begin, int64_t end, float* out) {
  for (int64_t j = begin; j < end; ++j) {
    const uint8_t* row = rows.base + rows.slots[j] * rows.step;
    for (int64_t d = 0; d < dim; d += 8) store(out + j * dim + d, Load::at(row, d));
  }
}

Partial softmax(float* scores, int64_t begin, int64_t end, ScoreRule rule) {
  const float lowest = -__builtin_inff();
  const F8 scale = broadcast(rule.scale), cap = broadcast(rule.soft_cap);
  const int64_t first = begin / 8 * 8, last = (end + 7) / 8 * 8;
  for (int64_t j = first; j < last; j += 8) {
    F8 x = mul(load(scores + j), scale);
    if (rule.soft_cap > 0) x = mul(cap, tanh(div(x, cap)));
    if (rule.bias) x = add(x, load(rule.bias + j));
    store(scores + j, x);
  }
  for (int64_t j = 0; j < begin; ++j) scores[j] = lowest;
  for (int64_t j = end; j < kBlockKeys; ++j) scores[j] = lowest;
  F8 largest = broadcast(lowest);
  for (int64_t j = first; j < last; j += 8) largest = max(largest, load(scores + j));
  const float top = max_lane(largest);
  if (top == lowest) return {lowest, 0.0f};
  const F8 shift = broadcast(top);
  F8 sum = broadcast(0.0f);
  for (int64_t j = first; j < last; j += 8) {
    const F8 p = exp(sub(load(scores + j), shift));
    store(scores + j, p);
    sum = add(sum, p);
  }
  return {top, sum_lanes(sum)};
}

void merge(Partial* total, float* total_sums, Partial next, const float* next_sums, int64_t dim) {
  const float top = total->max > next.max ? total->max : next.max;
  float weight[8] = {total->max - top, next.max - top};
  store(weight, exp(load(weight)));
  const F8 before = broadcast(weight[0]), more = broadcast(weight[1]);
  total->max = top;
  total->sum = __builtin_fmaf(next.sum, weight[1], total->sum * weight[0]);
  for (int64_t d = 0; d < dim; d += 8) {
    store(total_sums + d, fma(load(next_sums + d), more, mul(load(total_sums + d), before)));
  }
}

constexpr AttentionBlock kTable{{scores<LoadF32>, scores<LoadF16>, scores<LoadBF16>, scores<LoadQ8_0>},
                                softmax,
                                {values<LoadF32>, values<LoadF16>, values<LoadBF16>, values<LoadQ8_0>},
                                {unpack<LoadF32>, unpack<LoadF16>, unpack<LoadBF16>, unpack<LoadQ8_0>},
                                merge};

}  // namespace
}  // namespace fathom
