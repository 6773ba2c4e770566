// NEON with sdot: four output columns in the lanes of a vector, read in place. One row with blocks of 256,
// and with q4_0, has files of its own.
#include "quant/kernels.h"
#include "quant/neon_formats.h"

namespace fathom {
namespace {

constexpr int kTileColumns = 8;

struct Activations {  // 32 elements of one row; scale and sum in both lanes
  Int8x32 q;
  float32x2_t scale, sum;
  int32x2_t minus;
};

inline Activations zero_activations() {
  return {{vdupq_n_s8(0), vdupq_n_s8(0)}, vdup_n_f32(0.0f), vdup_n_f32(0.0f), vdup_n_s32(0)};
}

// Rounds to nearest even by adding 1.5 * 2^23: the integer is then in the low bits (see kMagicBits), its last
// byte is kept.
inline int8x16_t round_to_int8(const float* x, float32x2_t inverse) {
  int16x8_t q[4];
  for (int i = 0; i < 4; ++i) {
    const float32x4_t scaled = vmulq_lane_f32(vld1q_f32(x + 4 * i), inverse, 0);
    q[i] = vreinterpretq_s16_f32(vaddq_f32(scaled, vdupq_n_f32(12582912.0f)));
  }
  return vuzp1q_s8(vreinterpretq_s8_s16(vuzp1q_s16(q[0], q[1])),
                   vreinterpretq_s8_s16(vuzp1q_s16(q[2], q[3])));
}

inline uint32x4_t magnitude(const float* x) {
  return vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x)));
}

// As the scalar one; everything but the two rare cases stays in vector registers.
inline Activations quantize_block(const float* x) {
  uint32x4_t top[4];
  for (int i = 0; i < 4; ++i) top[i] = vmaxq_u32(magnitude(x + 4 * i), magnitude(x + 16 + 4 * i));
  uint32x4_t most = vmaxq_u32(vmaxq_u32(top[0], top[1]), vmaxq_u32(top[2], top[3]));
  most = vpmaxq_u32(most, most);
  most = vpmaxq_u32(most, most);
  const float32x2_t largest = vreinterpret_f32_u32(vget_low_u32(most));
  Activations out = zero_activations();
  constexpr uint32_t kInfinity = 0x7f800000, kSmallest = 0x0da24260;  // infinity, and 1e-30
  const uint32_t bits = vgetq_lane_u32(most, 0);
  if (bits - kSmallest >= kInfinity - kSmallest) {
    if (bits >= kInfinity) out.scale = out.sum = vreinterpret_f32_u32(vdup_n_u32(0x7fc00000));
    return out;
  }
  const float32x2_t inverse = vdiv_f32(vdup_n_f32(127.0f), largest);
  out.q = {round_to_int8(x, inverse), round_to_int8(x + 16, inverse)};
  const int8x16_t ones = vdupq_n_s8(1);
  const int32x4_t low = vdotq_s32(vdupq_n_s32(0), out.q.low, ones),
                  high = vdotq_s32(vdupq_n_s32(0), out.q.high, ones);
  const int32x4_t pairs = vpaddq_s32(low, high);
  const int32x2_t sums = vget_low_s32(vpaddq_s32(pairs, pairs));  // of the two halves
  out.minus = vneg_s32(sums);
  out.scale = vmul_n_f32(largest, 1.0f / 127.0f);
  out.sum = vmul_f32(out.scale, vcvt_f32_s32(vpadd_s32(sums, sums)));
  return out;
}

inline void store_twice(int8x16_t q, int8_t* to) {
  const int64x2_t eights = vreinterpretq_s64_s8(q);
  vst1q_s8(to, vreinterpretq_s8_s64(vzip1q_s64(eights, eights)));
  vst1q_s8(to + 16, vreinterpretq_s8_s64(vzip2q_s64(eights, eights)));
}

void quantize_row(const float* x, int64_t k, const QuantRow& out) {
  for (int64_t b = 0; b < k / 32; ++b) {
    const Activations block = quantize_block(x + 32 * b);
    vst1q_s8(out.q + 32 * b, block.q.low);
    vst1q_s8(out.q + 32 * b + 16, block.q.high);
    store_twice(block.q.low, out.twice + 64 * b);
    store_twice(block.q.high, out.twice + 64 * b + 32);
    vst1_lane_f32(out.scale + b, block.scale, 0);
    vst1_lane_f32(out.sum + b, block.sum, 0);
    vst1_s32(out.minus + 2 * b, block.minus);
  }
}

// A block of 32.
template <class F>
inline float32x4_t add_block(float32x4_t acc, const Four& blocks, const QuantRow& x, int64_t b) {
  const typename F::Scales scales = F::scales(blocks.row);
  const int8x16_t low = vld1q_s8(x.q + 32 * b), high = vld1q_s8(x.q + 32 * b + 16);
  const float32x4_t x_scale = vld1q_dup_f32(x.scale + b);
  int32x2_t minus = vdup_n_s32(0);
  if constexpr (F::kOffset != 0) minus = vmul_n_s32(vld1_s32(x.minus + 2 * b), F::kOffset);
  const int32x4_t start = vcombine_s32(minus, vcreate_s32(kMagicBits));
  int32x4_t dots[4];
  for (int c = 0; c < 4; ++c) {
    const Int8x32 w = F::load(blocks.row[c], 0);
    dots[c] = vdotq_s32(vdotq_s32(start, w.low, low), w.high, high);
  }
  acc = vfmaq_f32(acc, float_of_magic(sum_lanes(dots)), vmulq_f32(F::scale(scales, 0), x_scale));
  if constexpr (F::kMin) acc = vfmaq_f32(acc, F::min(scales, 0), vld1q_dup_f32(x.sum + b));
  return acc;
}

// How many times four rows are read together. Twice where arithmetic is what limits: while one four waits for
// its sums, the other one works.
template <class F>
constexpr int kFours = F::kBytes <= 20 ? 2 : 1;

template <class F>
void dot_row(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  for (int64_t c = 0; c < weights.step; ++c) {
    Four rows[kFours<F>];
    float32x4_t acc[kFours<F>];
#pragma GCC unroll 2
    for (int f = 0; f < kFours<F>; ++f) {
      rows[f] =
          four_rows(weights.data, weights.stride, weights.columns, c + 4 * f * weights.step, weights.step);
      acc[f] = vdupq_n_f32(0.0f);
    }
    int64_t at = 0;
    for (int64_t b = 0; b < k / 32; ++b) {
#pragma GCC unroll 2
      for (int f = 0; f < kFours<F>; ++f) acc[f] = add_block<F>(acc[f], rows[f].at(at), x, b);
      at += F::kBytes;
    }
    float values[4 * kFours<F>];
    for (int f = 0; f < kFours<F>; ++f) vst1q_f32(values + 4 * f, acc[f]);
    for (int64_t i = 0; i < 4 * kFours<F> && c + i * weights.step < weights.columns; ++i) {
      out[c + i * weights.step] = values[i];
    }
  }
}

// A record of packed rows (i8mm's kernels read it too): for each 8 elements, rows 0 and 1 side by side, then
// rows 2 and 3; after these 128 bytes the scales as 0 0 1 1, 2 2 3 3 and the sums likewise. What is there of
// rows past the last only makes results that nobody takes.
void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed) {
  for (int64_t b = 0; b < k / 32; ++b) {
    uint8_t* record = packed + b * kRowRecord;
    for (int64_t r = 0; r < rows; ++r) {
      const Activations block = quantize_block(x + r * stride + 32 * b);
      int8_t* q = reinterpret_cast<int8_t*>(record) + 16 * (r / 2) + 8 * (r % 2);
      vst1_s8(q, vget_low_s8(block.q.low));
      vst1_s8(q + 32, vget_high_s8(block.q.low));
      vst1_s8(q + 64, vget_low_s8(block.q.high));
      vst1_s8(q + 96, vget_high_s8(block.q.high));
      float* scale = reinterpret_cast<float*>(record + 128) + 2 * r;
      vst1_f32(scale, block.scale);
      vst1_f32(scale + 8, block.sum);
    }
  }
}

// A record of a tile: for each 4 elements, columns 0-3 side by side, then columns 4-7; after these 256 bytes
// the scales of the first group (8 floats), and those of the second or the minima.
inline void store_fours(const int8x16_t* columns, uint8_t* record) {
  int32x4_t v[4];
  for (int c = 0; c < 4; ++c) v[c] = vreinterpretq_s32_s8(columns[c]);
  const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(v[0], v[1])),
                  b = vreinterpretq_s64_s32(vtrn1q_s32(v[2], v[3]));
  const int64x2_t c = vreinterpretq_s64_s32(vtrn2q_s32(v[0], v[1])),
                  d = vreinterpretq_s64_s32(vtrn2q_s32(v[2], v[3]));
  vst1q_u8(record, vreinterpretq_u8_s64(vtrn1q_s64(a, b)));
  vst1q_u8(record + 32, vreinterpretq_u8_s64(vtrn1q_s64(c, d)));
  vst1q_u8(record + 64, vreinterpretq_u8_s64(vtrn2q_s64(a, b)));
  vst1q_u8(record + 96, vreinterpretq_u8_s64(vtrn2q_s64(c, d)));
}

template <class F>
void unpack_tile(const Weights& weights, int64_t k, uint8_t* tile) {
  const int8x16_t offset = vdupq_n_s8(F::kOffset);
  for (int quad = 0; quad < kTileColumns / 4; ++quad) {
    Four blocks = four_rows(weights.data, weights.stride, weights.columns, 4 * quad, 1);
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      const typename F::Scales scales = F::scales(blocks.row);
#pragma GCC unroll 8
      for (int sub = 0; sub < F::kSubs; ++sub) {
        uint8_t* record = tile + (b + sub) * kTileColumns * kTileRecordColumn;
        int8x16_t low[4], high[4];
        for (int c = 0; c < 4; ++c) {
          const Int8x32 w = F::load(blocks.row[c], sub);
          low[c] = vsubq_s8(w.low, offset);
          high[c] = vsubq_s8(w.high, offset);
        }
        store_fours(low, record + 16 * quad);
        store_fours(high, record + 128 + 16 * quad);
        float* floats = reinterpret_cast<float*>(record + 256) + 4 * quad;
        for (int group = 0; group < F::kGroups; ++group)
          vst1q_f32(floats + 8 * group, F::scale(scales, sub * F::kGroups + group));
        if (F::kMin) vst1q_f32(floats + 8, F::min(scales, sub));
      }
      for (const uint8_t*& row : blocks.row) row += F::kBytes;
    }
  }
}

// acc[r] += the dot products of row r with four columns, over `count` elements.
template <int count>
inline void dot_fours(const uint8_t* record, const uint8_t* columns, int32x4_t* acc) {
#pragma GCC unroll 4
  for (int i = 0; i < count / 8; ++i) {
    const int8x16_t first = vreinterpretq_s8_u8(vld1q_u8(columns + 64 * i));
    const int8x16_t second = vreinterpretq_s8_u8(vld1q_u8(columns + 64 * i + 32));
    for (int pair = 0; pair < 2; ++pair) {
      const int8x16_t q = vreinterpretq_s8_u8(vld1q_u8(record + 32 * i + 16 * pair));
      acc[2 * pair] = vdotq_laneq_s32(vdotq_laneq_s32(acc[2 * pair], first, q, 0), second, q, 1);
      acc[2 * pair + 1] = vdotq_laneq_s32(vdotq_laneq_s32(acc[2 * pair + 1], first, q, 2), second, q, 3);
    }
  }
}

template <class F>
void multiply(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
              float* out, int64_t stride) {
  for (int quad = 0; quad < kTileColumns / 4 && 4 * quad < columns; ++quad) {
    float32x4_t acc[4];
    for (float32x4_t& a : acc) a = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < k / 32; ++b) {
      const uint8_t *record = packed + b * kRowRecord,
                    *w = tile + b * kTileColumns * kTileRecordColumn + 16 * quad;
      const float *x_scale = reinterpret_cast<const float*>(record + 128),
                  *floats = reinterpret_cast<const float*>(w + 256);
      for (int group = 0; group < F::kGroups; ++group) {
        int32x4_t dots[4];
        for (int32x4_t& d : dots) d = vdupq_n_s32(kMagicBits);
        dot_fours<32 / F::kGroups>(record + 64 * group, w + 128 * group, dots);
        const float32x4_t scale = vld1q_f32(floats + 8 * group);
        for (int r = 0; r < 4; ++r) {
          acc[r] = vfmaq_f32(acc[r], float_of_magic(dots[r]), vmulq_n_f32(scale, x_scale[2 * r]));
        }
      }
      if constexpr (F::kMin) {
        for (int r = 0; r < 4; ++r) acc[r] = vfmaq_n_f32(acc[r], vld1q_f32(floats + 8), x_scale[8 + 2 * r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r) {
      if (r >= rows) break;
      float values[4];
      vst1q_f32(values, acc[r]);
      for (int64_t c = 4 * quad; c < columns && c < 4 * quad + 4; ++c)
        out[r * stride + c] = values[c - 4 * quad];
    }
  }
}

// Formats with a kernel in a file of its own name it here, with its number of streams.
using DotRow = void (*)(const QuantRow&, int64_t, const Weights&, float*);
template <class F>
constexpr DotRow kDotRow = dot_row<F>;
template <>
constexpr DotRow kDotRow<Q4_0> = dot_row_q4_0_dotprod;
template <>
constexpr DotRow kDotRow<Q4_K> = dot_row_q4_k_dotprod;
template <>
constexpr DotRow kDotRow<Q5_K> = dot_row_q5_k_dotprod;
template <>
constexpr DotRow kDotRow<Q6_K> = dot_row_q6_k_dotprod;

template <class F>
constexpr int kStreams = 4 * kFours<F>;
template <>
constexpr int kStreams<Q4_0> = 8;
template <>
constexpr int kStreams<Q4_K> = 4;
template <>
constexpr int kStreams<Q5_K> = 4;
template <>
constexpr int kStreams<Q6_K> = 4;

}  // namespace

const OneRowKernels kDotprodRow = {
    .streams = FATHOM_PER_FORMAT(kStreams),
    .quantize_row = quantize_row,
    .dot_row = FATHOM_PER_FORMAT(kDotRow),
};

const TileKernels kDotprodTile = {
    .columns = kTileColumns,
    .pack_rows = pack_rows,
    .unpack = FATHOM_PER_FORMAT(unpack_tile),
    .multiply = FATHOM_PER_FORMAT(multiply),
};

}  // namespace fathom
