// A few rows (2 to 8) with smmla, weights in place: what is read once from memory is used for all of them,
// without an unpacked copy. Rows are packed by dotprod's pack_rows: see there for the record.
#include "quant/kernels.h"
#include "quant/neon_formats.h"

namespace fathom {
namespace {

inline int8x16_t zip_low(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
inline int8x16_t zip_high(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
template <class F>
inline Zipped load_zipped(const Four& blocks, int sub) {
  const int8x16_t offset = vdupq_n_s8(F::kOffset);
  Zipped z;
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    Int8x32 a = F::load(blocks.row[2 * i], sub), b = F::load(blocks.row[2 * i + 1], sub);
    if constexpr (F::kOffset != 0) {
      a = {vsubq_s8(a.low, offset), vsubq_s8(a.high, offset)};
      b = {vsubq_s8(b.low, offset), vsubq_s8(b.high, offset)};
    }
    z.pair[0][i] = zip_low(a.low, b.low);
    z.pair[1][i] = zip_high(a.low, b.low);
    z.pair[2][i] = zip_low(a.high, b.high);
    z.pair[3][i] = zip_high(a.high, b.high);
  }
  return z;
}

inline float32x4_t load_floats(const uint8_t* bytes) {
  return vreinterpretq_f32_u8(vld1q_u8(bytes));
}

// What a sub-block's sums are multiplied with: the scales of both pairs of columns, and their minima.
template <class F>
struct PairScales {
  float32x4_t scale[F::kGroups][2], min[2];
  PairScales(const typename F::Scales& scales, int sub) {
    for (int group = 0; group < F::kGroups; ++group) {
      const PairsOf pairs(F::scale(scales, sub * F::kGroups + group));
      scale[group][0] = pairs.left;
      scale[group][1] = pairs.right;
    }
    if constexpr (F::kMin) {
      const PairsOf pairs(F::min(scales, sub));
      min[0] = pairs.left;
      min[1] = pairs.right;
    }
  }
};

// Sums of a block of 256 start at zeros made in place: these also keep the compiler from taking the eight
// parts of that block apart, for which it has too few registers.
template <class F>
inline int32x4_t start_of_sums() {
  return F::kSubs == 1 ? vdupq_n_s32(kMagicBits) : fresh_zero();
}
template <class F>
inline float32x4_t float_of_sums(int32x4_t sums) {
  return F::kSubs == 1 ? float_of_magic(sums) : vcvtq_f32_s32(sums);
}

// Two rows (a pair of a record) with two pairs of columns. x: the rows' bytes; floats: their scales 0 0 1 1,
// and 32 bytes on their sums.
template <class F>
inline void add_pair(const uint8_t* x, const uint8_t* floats, const Zipped& w, const PairScales<F>& by,
                     float32x4_t* acc) {
  constexpr int kSteps = 4 / F::kGroups;
  const float32x4_t x_scale = load_floats(floats);
#pragma GCC unroll 2
  for (int group = 0; group < F::kGroups; ++group) {
    int32x4_t left = start_of_sums<F>(), right = start_of_sums<F>();
#pragma GCC unroll 4
    for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
      const int8x16_t q = vreinterpretq_s8_u8(vld1q_u8(x + 32 * step));
      left = vmmlaq_s32(left, q, w.pair[step][0]);
      right = vmmlaq_s32(right, q, w.pair[step][1]);
    }
    acc[0] = vfmaq_f32(acc[0], float_of_sums<F>(left), vmulq_f32(by.scale[group][0], x_scale));
    acc[1] = vfmaq_f32(acc[1], float_of_sums<F>(right), vmulq_f32(by.scale[group][1], x_scale));
  }
  if constexpr (F::kMin) {
    const float32x4_t sums = load_floats(floats + 32);
    acc[0] = vfmaq_f32(acc[0], by.min[0], sums);
    acc[1] = vfmaq_f32(acc[1], by.min[1], sums);
  }
}

// How many times four columns are taken together, for `pairs` pairs of rows: twice while the sums leave room,
// so that the rows' bytes are loaded once for eight.
template <class F>
constexpr int fours_of(int pairs) {
  return pairs <= 2 && F::kSubs == 1 ? 2 : 1;
}

template <int kPairs>
inline void store_columns(const float32x4_t (&acc)[kPairs][2], int64_t rows, const Weights& weights,
                          int64_t column, float* out, int64_t stride) {
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p) {
    float values[2][4];
    vst1q_f32(values[0], acc[p][0]);
    vst1q_f32(values[1], acc[p][1]);
    for (int r = 0; r < 2 && 2 * p + r < rows; ++r) {
      float* to = out + (2 * p + r) * stride;
      for (int i = 0; i < 4 && column + i * weights.step < weights.columns; ++i)
        to[column + i * weights.step] = values[i / 2][2 * r + i % 2];
    }
  }
}

template <class F, int kPairs>
void dot_pairs(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
               int64_t stride) {
  constexpr int kFours = fours_of<F>(kPairs);
  const int64_t group_bytes = k / 32 * kRowRecord;
  for (int64_t c = 0; c < weights.step; ++c) {
    Four blocks[kFours];
    float32x4_t acc[kFours][kPairs][2];
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f) {
      blocks[f] =
          four_rows(weights.data, weights.stride, weights.columns, c + 4 * f * weights.step, weights.step);
#pragma GCC unroll 4
      for (auto& pair : acc[f]) pair[0] = pair[1] = vdupq_n_f32(0.0f);
    }
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
#pragma GCC unroll 2
      for (int f = 0; f < kFours; ++f) {
        const typename F::Scales scales = F::scales(blocks[f].row);
#pragma GCC unroll 8
        for (int sub = 0; sub < F::kSubs; ++sub) {
          const Zipped w = load_zipped<F>(blocks[f], sub);
          const PairScales<F> by(scales, sub);
#pragma GCC unroll 4
          for (int p = 0; p < kPairs; ++p) {
            const uint8_t* record = packed + p / 2 * group_bytes + (b + sub) * kRowRecord;
            add_pair<F>(record + 16 * (p % 2), record + 128 + 16 * (p % 2), w, by, acc[f][p]);
          }
        }
        for (const uint8_t*& row : blocks[f].row) row += F::kBytes;
      }
    }
#pragma GCC unroll 2
    for (int f = 0; f < kFours; ++f)
      store_columns(acc[f], rows, weights, c + 4 * f * weights.step, out, stride);
  }
}

template <class F>
void dot_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t stride) {
  if (rows <= 2) return dot_pairs<F, 1>(packed, rows, k, weights, out, stride);
  if (rows <= 4) return dot_pairs<F, 2>(packed, rows, k, weights, out, stride);
  dot_pairs<F, 4>(packed, rows, k, weights, out, stride);
}

template <class F>
constexpr StreamCounts kStreams = {4 * fours_of<F>(2), 4 * fours_of<F>(4)};

}  // namespace

const FewRowsKernels kI8mmFewRows = {
    .streams = FATHOM_PER_FORMAT(kStreams),
    .dot_rows = FATHOM_PER_FORMAT(dot_rows),
};

}  // namespace fathom
