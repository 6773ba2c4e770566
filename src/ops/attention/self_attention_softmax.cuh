// The softmax of the kernels on tensor cores, in units of log 2: forward over tiles of keys with a maximum
// that grows, backward from the row's log Σ exp. Scores lie as sums of products do (tensor_core.cuh), kParts
// times 16 rows of a warp.
#pragma once

#include "ops/attention/self_attention_mma.cuh"

namespace fathom {

// A row of logits is corrected for a new maximum only when that is larger than the old one by a factor of
// 2^kSlack: weights up to that size lose nothing.
inline constexpr float kSlack = 8.0f;

// Scores to logits in units of log 2. What is left to multiply with: 1, or with nothing else to do, scale.
template <bool kCap, int kParts, int kColumns>
__device__ float to_logits(const MmaCall& call, int32_t key, float (&s)[kParts][kColumns][4]) {
  const float *bias = call.plan.key_bias, scale = call.shape.scale;
  if (!kCap && !bias) return scale * kLog2E;
  const float inner = kCap ? scale / call.shape.soft_cap : scale * kLog2E;
  const float outer = call.shape.soft_cap * kLog2E;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    float2 more = make_float2(0.0f, 0.0f);
    if (bias) more = *reinterpret_cast<const float2*>(bias + key + n * 8 + 2 * (lane_id() % 4));
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = s[m][n][i] * inner, add = (i % 2 == 0 ? more.x : more.y) * kLog2E;
        s[m][n][i] = kCap ? fmaf(outer, fast_tanh(x), add) : x + add;
      }
    }
  }
  return 1.0f;
}

// The softmax of a warp's rows so far. Rows: [part][half], as in factor C.
template <int kDim, int kParts>
struct Softmax {
  float most[kParts][2], total[kParts][2];  // in units of log 2; total: of this lane's columns
  float sums[kParts][kDim / 8][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) most[m][half] = -kInf, total[m][half] = 0.0f;
    }
    fathom::clear(sums);
  }

  // Raises the maxima where the scores need it.
  template <int kColumns>
  __device__ void make_room(const float (&s)[kParts][kColumns][4], float factor) {
    float top[kParts][2];
    bool grown = false;
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = -kInf;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) x = fmaxf(x, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        top[m][half] = quad_max(x) * factor;
        grown |= top[m][half] > most[m][half] + kSlack;
      }
    }
    if (!__any_sync(kAllLanes, grown)) return;
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool raise = top[m][half] > most[m][half] + kSlack;
        const float correction = raise ? fast_exp2(most[m][half] - top[m][half]) : 1.0f;
        if (raise) most[m][half] = top[m][half];
        total[m][half] *= correction;
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          sums[m][n][2 * half] *= correction;
          sums[m][n][2 * half + 1] *= correction;
        }
      }
    }
  }

  // Scores to weights.
  template <int kColumns>
  __device__ void weigh(float (&s)[kParts][kColumns][4], float factor) {
#pragma unroll
    for (int m = 0; m < kParts; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float base = most[m][half] == -kInf ? 0.0f : most[m][half];
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            s[m][n][i] = fast_exp2(fmaf(s[m][n][i], factor, -base));
            total[m][half] += s[m][n][i];
          }
        }
      }
    }
  }
};

// The softmax's weight of a product q · k (−inf: hidden), and its derivative by scale · q · k over the
// weight. less: log Σ exp less the key's bias, in units of log 2; +inf: 0. kPlain: neither a cap nor biases.
struct Weight {
  float value, slope;
};
template <bool kPlain>
struct WeightRule {
  float inner, outer;
  __device__ explicit WeightRule(const SelfAttentionShape& shape)
      : inner(kPlain || shape.soft_cap <= 0 ? shape.scale * kLog2E : shape.scale / shape.soft_cap),
        outer(shape.soft_cap * kLog2E) {}
  __device__ Weight operator()(float product, float less) const {
    if (kPlain || outer <= 0) return {fast_exp2(fmaf(product, inner, -less)), 1.0f};
    const float t = fast_tanh(product * inner);
    return {product == -kInf ? 0.0f : fast_exp2(fmaf(outer, t, -less)), fmaf(-t, t, 1.0f)};
  }
};

}  // namespace fathom
