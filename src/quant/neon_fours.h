// How NEON reads weights in fours (fours.h), for the files built with instruction-set flags: everything has
// internal linkage.
#pragma once

#include "quant/kernels.h"
#include "quant/neon_formats.h"

namespace fathom {
namespace {  // NOLINT(google-build-namespaces): see above

// A format: the integers of a record, times 2^kShift where that is cheaper than the integers themselves.
struct FourQ8_0 {
  static constexpr int kBytes = 136, kScalesAt = 128, kShift = 0;
  static constexpr bool kMin = false, kFourRowsInAssembly = true;
  static Zipped pieces(const uint8_t* record) {
    Zipped out;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) out.pair[i / 2][i % 2] = vreinterpretq_s8_u8(vld1q_u8(record + 16 * i));
    return out;
  }
  static Zipped integers(const uint8_t* record) {
    return pieces(record);
  }
};

// of(bytes, high): the low or the high nibbles of 16 bytes.
template <class Nibbles>
inline Zipped nibble_pieces(const uint8_t* record, Nibbles&& of) {
  Zipped out;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint8x16_t bytes = vld1q_u8(record + 16 * i);
    out.pair[i / 2][i % 2] = of(bytes, false);
    out.pair[i / 2 + 2][i % 2] = of(bytes, true);
  }
  return out;
}

struct FourQ4_0 {
  static constexpr int kBytes = 72, kScalesAt = 64, kShift = 4;
  static constexpr bool kMin = false, kFourRowsInAssembly = false;
  static Zipped pieces(const uint8_t* record) {
    return nibble_pieces(record, [](uint8x16_t bytes, bool high) {
      return vreinterpretq_s8_u8(high ? vandq_u8(bytes, vdupq_n_u8(0xf0)) : vshlq_n_u8(bytes, 4));
    });
  }
  static Zipped integers(const uint8_t* record) {
    return nibble_pieces(record, [](uint8x16_t bytes, bool high) {
      return vshrq_n_s8(vreinterpretq_s8_u8(high ? bytes : vshlq_n_u8(bytes, 4)), 4);
    });
  }
};

struct FourQ4_1 {
  static constexpr int kBytes = 80, kScalesAt = 64, kShift = 0;
  static constexpr bool kMin = true, kFourRowsInAssembly = false;
  static Zipped pieces(const uint8_t* record) {
    return nibble_pieces(record, [](uint8x16_t bytes, bool high) {
      return vreinterpretq_s8_u8(high ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15)));
    });
  }
  static Zipped integers(const uint8_t* record) { return pieces(record); }
};

// Formats without the layout.
struct NoFour {};
using FourQ5_0 = NoFour;
using FourQ5_1 = NoFour;
using FourQ4_K = NoFour;
using FourQ5_K = NoFour;
using FourQ6_K = NoFour;

inline float32x4_t four_halves(const uint8_t* bytes) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes)));
}
template <class F>
inline float32x4_t scales_of(const uint8_t* record) {
  return four_halves(record + F::kScalesAt);
}
template <class F>
inline float32x4_t minima_of(const uint8_t* record) {
  return F::kMin ? four_halves(record + F::kScalesAt + 8) : vdupq_n_f32(0.0f);
}

// A sum of products of pieces, as the integers' sum.
template <class F>
inline float32x4_t float_of(int32x4_t sum) {
  if constexpr (F::kShift == 0)
    return vcvtq_f32_s32(sum);
  else
    return vcvtq_n_f32_s32(sum, F::kShift);
}

// Two fours, far apart, are read together. That is two long streams, fewer than the hardware likes to follow
// by itself: it is told, where that was seen to help (not for one row of q4_0).
constexpr int kAhead = 1024;  // bytes

template <class F>
inline void ask_ahead(const uint8_t* record) {
#pragma GCC unroll 2
  for (int line = 0; line + 64 <= F::kBytes; line += 64) __builtin_prefetch(record + kAhead + line);
}

// The first of four columns of each stream; past the last four, the last again (its results are dropped).
template <int kStreams>
struct Streams {
  const uint8_t* record[kStreams];
  int64_t four[kStreams], fours;
  Streams(const Weights& weights, int64_t first) : fours(weights.columns / 4) {
    for (int s = 0; s < kStreams; ++s) {
      four[s] = first + s * weights.step;
      record[s] = weights.data + 4 * weights.stride * (four[s] < fours ? four[s] : fours - 1);
    }
  }
};

// One row of activations with four columns over block b.
template <class F>
inline float32x4_t add_block(float32x4_t acc, const uint8_t* record, const QuantRow& x, int64_t b) {
  const Zipped w = F::pieces(record);
  int32x4_t left = vdupq_n_s32(0), right = vdupq_n_s32(0);
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
    const int8x16_t q = vld1q_s8(x.twice + 64 * b + 16 * step);
    left = vdotq_s32(left, w.pair[step][0], q);
    right = vdotq_s32(right, w.pair[step][1], q);
  }
  const float32x4_t scale = vmulq_f32(scales_of<F>(record), vld1q_dup_f32(x.scale + b));
  acc = vfmaq_f32(acc, float_of<F>(vpaddq_s32(left, right)), scale);
  if constexpr (F::kMin) acc = vfmaq_f32(acc, minima_of<F>(record), vld1q_dup_f32(x.sum + b));
  return acc;
}

// Pairs of rows by pairs of columns, as smmla leaves them, to rows of four.
template <int kPairs>
inline void store_four(const float32x4_t (&acc)[kPairs][2], int64_t rows, float* out, int64_t stride) {
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p) {
    if (2 * p >= rows) return;
    const float64x2_t left = vreinterpretq_f64_f32(acc[p][0]), right = vreinterpretq_f64_f32(acc[p][1]);
    vst1q_f32(out + 2 * p * stride, vreinterpretq_f32_f64(vzip1q_f64(left, right)));
    if (2 * p + 1 < rows)
      vst1q_f32(out + (2 * p + 1) * stride, vreinterpretq_f32_f64(vzip2q_f64(left, right)));
  }
}

}  // namespace
}  // namespace fathom
