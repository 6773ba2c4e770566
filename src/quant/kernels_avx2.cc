// AVX2: one row reads four weight rows in place (of nibbles eight), 32 elements of each at a time; many rows
// read tiles of eight columns.
#include "quant/avx2_products.h"

namespace fathom {
namespace {

constexpr int kTileColumns = 8;
constexpr int kRecord = kTileColumns * kTileRecordColumn;

struct Activations {  // 32 elements of one row
  __m256i q;
  float scale, sum;
  int32_t minus[2];
};

inline int32_t sum_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_hadd_epi32(s, s);
  return _mm_cvtsi128_si32(_mm_hadd_epi32(s, s));
}

inline Activations quantize_block(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    top = _mm256_max_epu32(top, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + 8 * i)), magnitude));
  }
  __m128i most = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
  const float largest = _mm_cvtss_f32(_mm_castsi128_ps(most));
  Activations out{_mm256_setzero_si256(), 0.0f, 0.0f, {0, 0}};
  if (static_cast<uint32_t>(_mm_cvtsi128_si32(most)) >= 0x7f800000) {
    out.scale = out.sum = _mm_cvtss_f32(_mm_castsi128_ps(_mm_set1_epi32(0x7fc00000)));
    return out;
  }
  if (largest < 1e-30f) return out;
  const __m256 inverse = _mm256_set1_ps(127.0f / largest);
  __m256i q[4];
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
  out.minus[0] = -sum_of(_mm256_add_epi32(q[0], q[1]));
  out.minus[1] = -sum_of(_mm256_add_epi32(q[2], q[3]));
  // Packing works within 128-bit lanes: the permutation puts the groups of four back in order.
  const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  out.q = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  out.scale = largest * (1.0f / 127.0f);
  out.sum = out.scale * static_cast<float>(-(out.minus[0] + out.minus[1]));
  return out;
}

void quantize_row(const float* x, int64_t k, const QuantRow& out) {
  for (int64_t b = 0; b < k / 32; ++b) {
    const Activations block = quantize_block(x + 32 * b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + 32 * b), block.q);
    out.scale[b] = block.scale;
    out.sum[b] = block.sum;
    out.minus[2 * b] = block.minus[0];
    out.minus[2 * b + 1] = block.minus[1];
  }
}

// Sums of four products as int32.
template <class F>
inline __m256i dot4(__m256i w, __m256i x) {
  return _mm256_madd_epi16(pairs_of<F>(w, x), _mm256_set1_epi16(1));
}

template <class F>
inline __m128 add_sub_block(__m128 acc, const Four& blocks, int sub, const QuantRow& x, int64_t b,
                            const __m128* scale, const __m128* min) {
  const __m256i q = load32(reinterpret_cast<const uint8_t*>(x.q + 32 * b));
  const __m128 x_scale = _mm_set1_ps(x.scale[b]);
  __m256i dots[4];
  for (int c = 0; c < 4; ++c) dots[c] = dot4<F>(F::load(blocks.row[c], sub), q);
  // Lane c of each half: row c's sum over 16 elements.
  const __m256i sums =
      _mm256_hadd_epi32(_mm256_hadd_epi32(dots[0], dots[1]), _mm256_hadd_epi32(dots[2], dots[3]));
  const __m128i low = _mm256_castsi256_si128(sums), high = _mm256_extracti128_si256(sums, 1);
  const __m128i minus0 = _mm_set1_epi32(F::kOffset * x.minus[2 * b]);
  const __m128i minus1 = _mm_set1_epi32(F::kOffset * x.minus[2 * b + 1]);
  if constexpr (F::kGroups == 1) {
    const __m128i dot = _mm_add_epi32(_mm_add_epi32(low, high), _mm_add_epi32(minus0, minus1));
    acc = _mm_fmadd_ps(_mm_cvtepi32_ps(dot), _mm_mul_ps(scale[0], x_scale), acc);
  } else {
    acc = _mm_fmadd_ps(_mm_cvtepi32_ps(_mm_add_epi32(low, minus0)), _mm_mul_ps(scale[0], x_scale), acc);
    acc = _mm_fmadd_ps(_mm_cvtepi32_ps(_mm_add_epi32(high, minus1)), _mm_mul_ps(scale[1], x_scale), acc);
  }
  if constexpr (F::kMin) acc = _mm_fmadd_ps(min[0], _mm_set1_ps(x.sum[b]), acc);
  return acc;
}

template <class F>
void dot_row(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  for (int64_t c = 0; c < weights.step; ++c) {
    Four blocks = four_rows(weights.data, weights.stride, weights.columns, c, weights.step);
    __m128 acc = _mm_setzero_ps();
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      __m128 scale[F::kSubs * F::kGroups], min[F::kSubs];
      F::scales(blocks.row, scale, min);
      for (int sub = 0; sub < F::kSubs; ++sub) {
        acc = add_sub_block<F>(acc, blocks, sub, x, b + sub, scale + sub * F::kGroups, min + sub);
      }
      for (const uint8_t*& row : blocks.row) row += F::kBytes;
    }
    float values[4];
    _mm_storeu_ps(values, acc);
    store_columns(values, 4, weights.columns, c, weights.step, out);
  }
}

// The same for formats whose blocks are 32 nibbles after their scales: eight columns, two of them in a
// register, so that one shift parts the nibbles of both.
template <class F>
void dot_row_nibbles(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  constexpr int kNibbles = F::kBytes - 16;
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  for (int64_t c = 0; c < weights.step && c < weights.columns; ++c) {
    Eight blocks = eight_columns(weights, c);
    __m256 acc = _mm256_setzero_ps();
    for (int64_t b = 0; b < k / 32; ++b) {
      const auto* const q = reinterpret_cast<const uint8_t*>(x.q + 32 * b);
      const __m256i low = _mm256_broadcastsi128_si256(load16(q)),
                    high = _mm256_broadcastsi128_si256(load16(q + 16));
      __m256i sums[4];  // of four products, of the columns i (low lane) and 4 + i
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i both =
            _mm256_inserti128_si256(_mm256_castsi128_si256(load16(blocks.column[i] + kNibbles)),
                                    load16(blocks.column[4 + i] + kNibbles), 1);
        const __m256i first = _mm256_maddubs_epi16(_mm256_and_si256(both, mask), low),
                      second = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(both, 4), mask), high);
        sums[i] = _mm256_madd_epi16(_mm256_add_epi16(first, second), ones);
      }
      const __m256i dots =
          _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
      __m128 scale[2], min[2];
      for (int quad = 0; quad < 2; ++quad) F::scales(blocks.column + 4 * quad, scale + quad, min + quad);
      const __m256i minus = _mm256_set1_epi32(F::kOffset * (x.minus[2 * b] + x.minus[2 * b + 1]));
      acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_add_epi32(dots, minus)),
                            _mm256_mul_ps(_mm256_set_m128(scale[1], scale[0]), _mm256_set1_ps(x.scale[b])),
                            acc);
      if constexpr (F::kMin)
        acc = _mm256_fmadd_ps(_mm256_set_m128(min[1], min[0]), _mm256_set1_ps(x.sum[b]), acc);
      for (const uint8_t*& block : blocks.column) block += F::kBytes;
    }
    float values[8];
    _mm256_storeu_ps(values, acc);
    store_columns(values, 8, weights.columns, c, weights.step, out);
  }
}
template <>
void dot_row<Q4_0>(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  dot_row_nibbles<Q4_0>(x, k, weights, out);
}
template <>
void dot_row<Q4_1>(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  dot_row_nibbles<Q4_1>(x, k, weights, out);
}

// A record of packed rows (AVX-512's kernels read it too): 32 bytes per row; at 128 four scales, at 144 four
// sums, at 160 four times -Σq of the first 16 elements, at 176 of the second 16.
void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed) {
  const Activations zero{_mm256_setzero_si256(), 0.0f, 0.0f, {0, 0}};
  for (int64_t b = 0; b < k / 32; ++b) {
    uint8_t* record = packed + b * kRowRecord;
    for (int r = 0; r < kTileRows; ++r) {
      const Activations block = r < rows ? quantize_block(x + r * stride + 32 * b) : zero;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(record + 32 * r), block.q);
      __builtin_memcpy(record + 128 + 4 * r, &block.scale, 4);
      __builtin_memcpy(record + 144 + 4 * r, &block.sum, 4);
      __builtin_memcpy(record + 160 + 4 * r, &block.minus[0], 4);
      __builtin_memcpy(record + 176 + 4 * r, &block.minus[1], 4);
    }
  }
}

// A record of a tile: for each 4 elements, eight columns side by side, as stored; after these 256 bytes the
// scales of the first group (8 floats), and those of the second or the minima.
template <class F>
void unpack_tile(const Weights& weights, int64_t k, uint8_t* tile) {
  const uint8_t* blocks[kTileColumns];
  for (int quad = 0; quad < kTileColumns / 4; ++quad) {
    const Four rows = four_rows(weights.data, weights.stride, weights.columns, 4 * quad, 1);
    for (int c = 0; c < 4; ++c) blocks[4 * quad + c] = rows.row[c];
  }
  for (int64_t b = 0; b < k / 32; b += F::kSubs) {
    uint8_t* const records = tile + b * kRecord;
    for (int quad = 0; quad < kTileColumns / 4; ++quad) {
      __m128 scale[F::kSubs * F::kGroups], min[F::kSubs];
      F::scales(blocks + 4 * quad, scale, min);
      for (int sub = 0; sub < F::kSubs; ++sub) {
        float* floats = reinterpret_cast<float*>(records + sub * kRecord + 256) + 4 * quad;
        for (int group = 0; group < F::kGroups; ++group) {
          _mm_storeu_ps(floats + 8 * group, scale[sub * F::kGroups + group]);
        }
        if (F::kMin) _mm_storeu_ps(floats + 8, min[sub]);
      }
    }
    for (int sub = 0; sub < F::kSubs; ++sub) transpose_columns<F>(blocks, sub, records + sub * kRecord);
    for (const uint8_t*& block : blocks) block += F::kBytes;
  }
}

template <class F>
void multiply(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
              float* out, int64_t stride) {
  __m256 acc[kTileRows];
  for (__m256& a : acc) a = _mm256_setzero_ps();
  for (int64_t b = 0; b < k / 32; ++b) {
    const uint8_t *record = packed + b * kRowRecord, *w = tile + b * kRecord;
    const float* const floats = reinterpret_cast<const float*>(w + 256);
    for (int group = 0; group < F::kGroups; ++group)
      add_group<F, kTileRows>(record, w, group, _mm256_loadu_ps(floats + 8 * group), acc);
    if constexpr (F::kMin) add_minima<kTileRows>(record, _mm256_loadu_ps(floats + 8), acc);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kTileRows; ++r) {
    if (r >= rows) break;
    float values[8];
    _mm256_storeu_ps(values, acc[r]);
    for (int64_t c = 0; c < columns; ++c) out[r * stride + c] = values[c];
  }
}

template <class F>
constexpr int kStreams = 4;
template <>
constexpr int kStreams<Q4_0> = 8;
template <>
constexpr int kStreams<Q4_1> = 8;

}  // namespace

const OneRowKernels kAvx2Row = {
    .streams = FATHOM_PER_FORMAT(kStreams),
    .quantize_row = quantize_row,
    .dot_row = FATHOM_PER_FORMAT(dot_row),
};

const TileKernels kAvx2Tile = {
    .columns = kTileColumns,
    .pack_rows = pack_rows,
    .unpack = FATHOM_PER_FORMAT(unpack_tile),
    .multiply = FATHOM_PER_FORMAT(multiply),
};

}  // namespace fathom
