// The formats with blocks of 256, and one row of activations. A part of a block at a time: first the integer
// sums of all its groups, so that each byte of the weights is loaded once for all the groups it has bits of;
// then they are scaled and added in their order. In cycles for 32 elements of four weight rows on a
// Neoverse-V1: 11.5 for q4_k, 17.2 for q6_k (with 33 and 48 vector instructions).
#include "quant/kernels.h"
#include "quant/neon_formats.h"

namespace fathom {
namespace {

// Dot products of four weight rows with x, in four parts each.
struct Dots {
  int32x4_t row[4];
};

inline Dots dot(const uint8x16_t* w, const int8_t* q) {
  const int8x16_t x = vld1q_s8(q);
  Dots out;
  for (int c = 0; c < 4; ++c) out.row[c] = vdotq_s32(fresh_zero(), vreinterpretq_s8_u8(w[c]), x);
  return out;
}
inline Dots add_dot(Dots dots, const uint8x16_t* w, const int8_t* q) {
  const int8x16_t x = vld1q_s8(q);
  for (int c = 0; c < 4; ++c) dots.row[c] = vdotq_s32(dots.row[c], vreinterpretq_s8_u8(w[c]), x);
  return dots;
}
inline int32x4_t sum_lanes(const Dots& dots) {
  return sum_lanes(dots.row);
}

inline void load_four(const Four& blocks, int at, uint8x16_t* out) {
  for (int c = 0; c < 4; ++c) out[c] = vld1q_u8(blocks.row[c] + at);
}

// A part is 64 elements: 32 bytes hold the low four bits of both groups.
template <class F>
struct NibbleParts : F {
  static constexpr int kParts = 4, kPartGroups = 2;
  static void sums(const Four& blocks, int part, const int8_t* q, int32x4_t* out) {
    uint8x16_t even[4], odd[4];
    take_apart(blocks, part, 0, even, odd);
    const Dots second = dot(odd, q + 32), first = dot(even, q);
    take_apart(blocks, part, 16, even, odd);
    out[1] = sum_lanes(add_dot(second, odd, q + 48));
    out[0] = sum_lanes(add_dot(first, even, q + 16));
  }
  static void take_apart(const Four& blocks, int part, int at, uint8x16_t* even, uint8x16_t* odd) {
    uint8x16_t packed[4], high[4];
    load_four(blocks, F::kLowAt + 32 * part + at, packed);
    if constexpr (F::kHighAt != 0) load_four(blocks, F::kHighAt + at, high);
    for (int c = 0; c < 4; ++c) {
      odd[c] = vshrq_n_u8(packed[c], 4);
      even[c] = vandq_u8(packed[c], vdupq_n_u8(15));
      if constexpr (F::kHighAt != 0) {
        const uint8x16_t five = vdupq_n_u8(16);
        odd[c] = vbslq_u8(five, part < 2 ? high[c] << (3 - 2 * part) : high[c] >> (2 * part - 3), odd[c]);
        even[c] = vbslq_u8(five, part < 2 ? high[c] << (4 - 2 * part) : high[c] >> (2 * part - 4), even[c]);
      }
    }
  }
};

// A part is 128 elements: a byte of the high bits has two of every second group, and the low bits are in two
// others. Nine instructions take these three bytes apart into four weights.
struct Q6_KParts : Q6_K {
  static constexpr int kParts = 2, kPartGroups = 8;
  static void sums(const Four& blocks, int part, const int8_t* q, int32x4_t* out) {
    const uint8x16_t six = vdupq_n_u8(63), two = vdupq_n_u8(48);
#pragma GCC unroll 2
    for (int column = 0; column < 2; ++column) {
      const int8_t* x = q + 16 * column;
      uint8x16_t low[4], next[4], high[4], w[4];
      load_four(blocks, 64 * part + 16 * column, low);
      load_four(blocks, 64 * part + 32 + 16 * column, next);
      load_four(blocks, 128 + 32 * part + 16 * column, high);
      for (int c = 0; c < 4; ++c) w[c] = vbslq_u8(two, high[c], vshrq_n_u8(low[c], 4));
      out[4 + column] = sum_lanes(dot(w, x + 64));
      for (int c = 0; c < 4; ++c) w[c] = vandq_u8(vsliq_n_u8(low[c], high[c], 4), six);
      out[column] = sum_lanes(dot(w, x));
      for (int c = 0; c < 4; ++c) high[c] = vshrq_n_u8(high[c], 2);
      for (int c = 0; c < 4; ++c) w[c] = vbslq_u8(two, high[c], vshrq_n_u8(next[c], 4));
      out[6 + column] = sum_lanes(dot(w, x + 96));
      for (int c = 0; c < 4; ++c) w[c] = vandq_u8(vsliq_n_u8(next[c], high[c], 4), six);
      out[2 + column] = sum_lanes(dot(w, x + 32));
    }
  }
};

template <class F>
inline float32x4_t add_block(float32x4_t acc, const Four& blocks, const QuantRow& x, int64_t b) {
  const typename F::Scales scales = F::scales(blocks.row);
#pragma GCC unroll 4
  for (int part = 0; part < F::kParts; ++part) {
    int32x4_t sums[F::kPartGroups];
    F::sums(blocks, part, x.q + 32 * b + 256 / F::kParts * part, sums);
#pragma GCC unroll 8
    for (int i = 0; i < F::kPartGroups; ++i) {
      const int group = F::kPartGroups * part + i, sub = group / F::kGroups;
      int32x4_t sum = sums[i];
      if constexpr (F::kOffset != 0) sum = vmlaq_n_s32(sum, vdupq_n_s32(F::kOffset), x.minus[2 * b + group]);
      const float32x4_t scale = vmulq_n_f32(F::scale(scales, group), x.scale[b + sub]);
      acc = vfmaq_f32(acc, vcvtq_f32_s32(sum), scale);
      if constexpr (F::kMin) acc = vfmaq_n_f32(acc, F::min(scales, sub), x.sum[b + sub]);
    }
  }
  return acc;
}

template <class F>
void dot_row(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  for (int64_t c = 0; c < weights.step; ++c) {
    Four blocks = four_rows(weights.data, weights.stride, weights.columns, c, weights.step);
    float32x4_t acc = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      acc = add_block<F>(acc, blocks, x, b);
      for (const uint8_t*& row : blocks.row) row += F::kBytes;
    }
    float values[4];
    vst1q_f32(values, acc);
    for (int64_t i = 0; i < 4 && c + i * weights.step < weights.columns; ++i)
      out[c + i * weights.step] = values[i];
  }
}

}  // namespace

void dot_row_q4_k_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  dot_row<NibbleParts<Q4_K>>(x, k, weights, out);
}
void dot_row_q5_k_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  dot_row<NibbleParts<Q5_K>>(x, k, weights, out);
}
void dot_row_q6_k_dotprod(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  dot_row<Q6_KParts>(x, k, weights, out);
}

}  // namespace fathom
