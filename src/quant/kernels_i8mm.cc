// NEON with smmla (2 rows x 2 columns x 8 elements an instruction) for many rows. One row goes through
// dotprod's kernels, and so does the packing of rows: see pack_rows there for the record.
#include "quant/kernels.h"
#include "quant/neon_formats.h"

namespace fathom {
namespace {

constexpr int kTileColumns = 8;
constexpr int kRecord = kTileColumns * kTileRecordColumn;

// A record of a tile: for each 8 elements, four pairs of columns side by side (64 bytes); after these 256
// bytes, for each pair, the scales as 0 1 0 1 (the lanes of smmla's result are row 0 column 0, row 0 column
// 1, row 1 column 0, row 1 column 1), and then likewise the second group's scales, or the minima.
inline void store_pair(Int8x32 a, Int8x32 b, uint8_t* record) {
  const int64x2_t a0 = vreinterpretq_s64_s8(a.low), b0 = vreinterpretq_s64_s8(b.low);
  const int64x2_t a1 = vreinterpretq_s64_s8(a.high), b1 = vreinterpretq_s64_s8(b.high);
  vst1q_u8(record, vreinterpretq_u8_s64(vzip1q_s64(a0, b0)));
  vst1q_u8(record + 64, vreinterpretq_u8_s64(vzip2q_s64(a0, b0)));
  vst1q_u8(record + 128, vreinterpretq_u8_s64(vzip1q_s64(a1, b1)));
  vst1q_u8(record + 192, vreinterpretq_u8_s64(vzip2q_s64(a1, b1)));
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
        uint8_t* record = tile + (b + sub) * kRecord;
        Int8x32 w[4];
        for (int c = 0; c < 4; ++c) {
          w[c] = F::load(blocks.row[c], sub);
          if (F::kOffset != 0) w[c] = {vsubq_s8(w[c].low, offset), vsubq_s8(w[c].high, offset)};
        }
        store_pair(w[0], w[1], record + 32 * quad);
        store_pair(w[2], w[3], record + 32 * quad + 16);
        for (int group = 0; group < F::kGroups; ++group) {
          PairsOf(F::scale(scales, sub * F::kGroups + group)).store(record + 256 + 64 * group + 32 * quad);
        }
        if (F::kMin) PairsOf(F::min(scales, sub)).store(record + 320 + 32 * quad);
      }
      for (const uint8_t*& row : blocks.row) row += F::kBytes;
    }
  }
}

inline float32x4_t load_floats(const uint8_t* bytes) {
  return vreinterpretq_f32_u8(vld1q_u8(bytes));
}
inline int8x16_t load_bytes(const uint8_t* bytes) {
  return vreinterpretq_s8_u8(vld1q_u8(bytes));
}

// 2 * kPairs rows by eight columns over one record.
template <class F, int kPairs>
inline void add_record(const uint8_t* x, const uint8_t* w, float32x4_t (&acc)[kPairs][4]) {
  constexpr int kSteps = 4 / F::kGroups;
#pragma GCC unroll 2
  for (int group = 0; group < F::kGroups; ++group) {
    int32x4_t dots[kPairs][4];
    for (auto& row : dots) {
      for (int32x4_t& d : row) d = vdupq_n_s32(kMagicBits);
    }
#pragma GCC unroll 4
    for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
      int8x16_t q[kPairs];
      for (int p = 0; p < kPairs; ++p) q[p] = load_bytes(x + 32 * step + 16 * p);
      for (int c = 0; c < 4; ++c) {
        const int8x16_t column = load_bytes(w + 64 * step + 16 * c);
        for (int p = 0; p < kPairs; ++p) dots[p][c] = vmmlaq_s32(dots[p][c], q[p], column);
      }
    }
    for (int c = 0; c < 4; ++c) {
      const float32x4_t scale = load_floats(w + 256 + 64 * group + 16 * c);
      for (int p = 0; p < kPairs; ++p) {
        const float32x4_t both = vmulq_f32(scale, load_floats(x + 128 + 16 * p));
        acc[p][c] = vfmaq_f32(acc[p][c], float_of_magic(dots[p][c]), both);
      }
    }
  }
  if constexpr (F::kMin) {
    for (int c = 0; c < 4; ++c) {
      const float32x4_t min = load_floats(w + 320 + 16 * c);
      for (int p = 0; p < kPairs; ++p) acc[p][c] = vfmaq_f32(acc[p][c], min, load_floats(x + 160 + 16 * p));
    }
  }
}

inline void store_row(const float32x4_t* pairs, bool odd, int64_t columns, float* out) {
  float32x4_t v[2];
  for (int i = 0; i < 2; ++i) {
    const float64x2_t a = vreinterpretq_f64_f32(pairs[2 * i]), b = vreinterpretq_f64_f32(pairs[2 * i + 1]);
    v[i] = vreinterpretq_f32_f64(odd ? vzip2q_f64(a, b) : vzip1q_f64(a, b));
  }
  if (columns >= 8) {
    vst1q_f32(out, v[0]);
    vst1q_f32(out + 4, v[1]);
    return;
  }
  float values[8];
  vst1q_f32(values, v[0]);
  vst1q_f32(values + 4, v[1]);
  for (int64_t c = 0; c < columns; ++c) out[c] = values[c];
}

template <class F, int kPairs>
void multiply_pairs(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
                    float* out, int64_t stride) {
  float32x4_t acc[kPairs][4];
  for (auto& row : acc) {
    for (float32x4_t& a : row) a = vdupq_n_f32(0.0f);
  }
  for (int64_t b = 0; b < k / 32; ++b)
    add_record<F, kPairs>(packed + b * kRowRecord, tile + b * kRecord, acc);
#pragma GCC unroll 4
  for (int r = 0; r < 2 * kPairs; ++r) {
    if (r < rows) store_row(acc[r / 2], r % 2 != 0, columns, out + r * stride);
  }
}

template <class F>
void multiply(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
              float* out, int64_t stride) {
  if (rows <= 2) return multiply_pairs<F, 1>(packed, tile, k, rows, columns, out, stride);
  multiply_pairs<F, 2>(packed, tile, k, rows, columns, out, stride);
}

void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed) {
  kDotprodTile.pack_rows(x, stride, rows, k, packed);
}

}  // namespace

const TileKernels kI8mmTile = {
    .columns = kTileColumns,
    .pack_rows = pack_rows,
    .unpack = FATHOM_PER_FORMAT(unpack_tile),
    .multiply = FATHOM_PER_FORMAT(multiply),
};

}  // namespace fathom
