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
inline int32x4_t low_halves(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
inline int32x4_t high_halves(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

// 32 elements of four weight rows: for each 8 elements, rows 0 and 1 side by side, and rows 2 and 3.
struct Zipped {
  int8x16_t pair[4][2];
};

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

// Two rows (a pair of a record) with four columns. x: the pair's bytes; floats: its scales 0 0 1 1, and 32
// bytes on its sums.
template <class F>
inline void add_pair(const uint8_t* x, const uint8_t* floats, const Zipped& w, const float32x4_t* scale,
                     const float32x4_t* min, float32x4_t& even, float32x4_t& odd) {
  constexpr int kSteps = 4 / F::kGroups;
  const float32x4_t x_scale = load_floats(floats);
#pragma GCC unroll 2
  for (int group = 0; group < F::kGroups; ++group) {
    int32x4_t left = vdupq_n_s32(kMagicBits), right = left;
#pragma GCC unroll 4
    for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
      const int8x16_t q = vreinterpretq_s8_u8(vld1q_u8(x + 32 * step));
      left = vmmlaq_s32(left, q, w.pair[step][0]);
      right = vmmlaq_s32(right, q, w.pair[step][1]);
    }
    const float32x4_t first = float_of_magic(low_halves(left, right));
    const float32x4_t second = float_of_magic(high_halves(left, right));
    even = vfmaq_f32(even, first, vmulq_laneq_f32(scale[group], x_scale, 0));
    odd = vfmaq_f32(odd, second, vmulq_laneq_f32(scale[group], x_scale, 2));
  }
  if constexpr (F::kMin) {
    const float32x4_t sums = load_floats(floats + 32);
    even = vfmaq_laneq_f32(even, min[0], sums, 0);
    odd = vfmaq_laneq_f32(odd, min[0], sums, 2);
  }
}

template <class F, int kPairs>
void dot_pairs(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
               int64_t stride) {
  const int64_t group_bytes = k / 32 * kRowRecord;
  for (int64_t c = 0; c < weights.step; ++c) {
    Four blocks = four_rows(weights.data, weights.stride, weights.columns, c, weights.step);
    float32x4_t acc[2 * kPairs];
    for (float32x4_t& a : acc) a = vdupq_n_f32(0.0f);
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      float32x4_t scale[F::kSubs * F::kGroups], min[F::kSubs];
      F::scales(blocks.row, scale, min);
#pragma GCC unroll 1
      for (int sub = 0; sub < F::kSubs; ++sub) {
        const Zipped w = load_zipped<F>(blocks, sub);
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          const uint8_t* record = packed + p / 2 * group_bytes + (b + sub) * kRowRecord;
          add_pair<F>(record + 16 * (p % 2), record + 128 + 16 * (p % 2), w, scale + sub * F::kGroups,
                      min + sub, acc[2 * p], acc[2 * p + 1]);
        }
      }
      for (const uint8_t*& row : blocks.row) row += F::kBytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < 2 * kPairs; ++r) {
      if (r >= rows) break;
      float values[4];
      vst1q_f32(values, acc[r]);
      for (int64_t i = 0; i < 4 && c + i * weights.step < weights.columns; ++i) {
        out[r * stride + c + i * weights.step] = values[i];
      }
    }
  }
}

template <class F>
void dot_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t stride) {
  if (rows <= 2) return dot_pairs<F, 1>(packed, rows, k, weights, out, stride);
  if (rows <= 4) return dot_pairs<F, 2>(packed, rows, k, weights, out, stride);
  dot_pairs<F, 4>(packed, rows, k, weights, out, stride);
}

}  // namespace

const FewRowsKernels kI8mmFewRows = {
    .dot_rows = {dot_rows<Q8_0>, dot_rows<Q4_0>, dot_rows<Q4_1>, dot_rows<Q5_0>, dot_rows<Q5_1>,
                 dot_rows<Q4_K>, dot_rows<Q5_K>, dot_rows<Q6_K>},
};

}  // namespace fathom
