// AVX-512 with VNNI. Many rows: tiles of 32 columns, two vectors of 16. A few rows: sixteen columns in place.
// vpdpbusd multiplies unsigned with signed bytes and adds four products to an int32 without saturating;
// q8_0's weights get 128 added for it. One row goes through AVX2's kernels (memory is what limits it), and so
// does the packing of rows: see pack_rows there.
#include "quant/avx_formats.h"
#include "quant/kernels.h"

namespace fathom {
namespace {

constexpr int kTileColumns = 32;
constexpr int kRecord = kTileColumns * kTileRecordColumn;
constexpr int kFloats = 32 * kTileColumns;  // offset of the scales in a record

template <class F>
constexpr int kTileOffset = F::kSigned ? 128 : F::kOffset;

// Masks of all lanes: the unmasked forms make g++ 12 warn of an uninitialised value in its own header.

// Four vectors that each hold 32 bytes of two columns, (c, c + 4) for c = 0 … 3 -> for each 4 elements those
// of the eight columns: in place i the 128-bit lanes hold elements i of columns 0 … 3, 4 + i of these, i of
// columns 4 … 7, 4 + i.
inline void transpose_eight(__m512i (&v)[4]) {
  const __m512i low01 = _mm512_maskz_unpacklo_epi32(0xffff, v[0], v[1]),
                high01 = _mm512_maskz_unpackhi_epi32(0xffff, v[0], v[1]),
                low23 = _mm512_maskz_unpacklo_epi32(0xffff, v[2], v[3]),
                high23 = _mm512_maskz_unpackhi_epi32(0xffff, v[2], v[3]);
  v[0] = _mm512_maskz_unpacklo_epi64(0xff, low01, low23);
  v[1] = _mm512_maskz_unpackhi_epi64(0xff, low01, low23);
  v[2] = _mm512_maskz_unpacklo_epi64(0xff, high01, high23);
  v[3] = _mm512_maskz_unpackhi_epi64(0xff, high01, high23);
}

// 32 elements of each of sixteen columns, transposed: w[i] holds elements 4 i … 4 i + 3 of all of them.
template <class F>
inline void load_sixteen(const uint8_t* const* blocks, int sub, __m512i (&w)[8]) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(F::kSigned ? 0x80 : 0));
  __m512i eights[2][4];
  for (int eight = 0; eight < 2; ++eight) {
    const uint8_t* const* first = blocks + 8 * eight;
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i both = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(F::load(first[c], sub)),
                                                    F::load(first[c + 4], sub), 1);
      eights[eight][c] = F::kSigned ? _mm512_maskz_xor_epi64(0xff, both, sign) : both;
    }
    transpose_eight(eights[eight]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    w[i] = _mm512_maskz_shuffle_i32x4(0xffff, eights[0][i], eights[1][i], 0x88);
    w[4 + i] = _mm512_maskz_shuffle_i32x4(0xffff, eights[0][i], eights[1][i], 0xdd);
  }
}

struct Sixteen {  // the blocks of as many columns
  const uint8_t* column[16];
};

inline Sixteen sixteen_columns(const Weights& weights, int64_t first, int64_t step) {
  Sixteen blocks;
  for (int quad = 0; quad < 4; ++quad) {
    const Four four = four_rows(weights.data, weights.stride, weights.columns, first + 4 * quad * step, step);
    for (int c = 0; c < 4; ++c) blocks.column[4 * quad + c] = four.row[c];
  }
  return blocks;
}

// A record of a tile: for each 4 elements, 32 columns side by side, as unsigned bytes; after these 1024 bytes
// the scales of the first group (32 floats), and those of the second or the minima.
template <class F>
void unpack_tile(const Weights& weights, int64_t k, uint8_t* tile) {
  for (int half = 0; half < 2; ++half) {
    Sixteen blocks = sixteen_columns(weights, 16 * half, 1);
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      uint8_t* const records = tile + b * kRecord;
      for (int quad = 0; quad < 4; ++quad) {
        __m128 scale[F::kSubs * F::kGroups], min[F::kSubs];
        F::scales(blocks.column + 4 * quad, scale, min);
        for (int sub = 0; sub < F::kSubs; ++sub) {
          float* floats = reinterpret_cast<float*>(records + sub * kRecord + kFloats) + 16 * half + 4 * quad;
          for (int group = 0; group < F::kGroups; ++group)
            _mm_storeu_ps(floats + kTileColumns * group, scale[sub * F::kGroups + group]);
          if (F::kMin) _mm_storeu_ps(floats + kTileColumns, min[sub]);
        }
      }
      for (int sub = 0; sub < F::kSubs; ++sub) {
        __m512i w[8];
        load_sixteen<F>(blocks.column, sub, w);
        for (int i = 0; i < 8; ++i) _mm512_storeu_si512(records + sub * kRecord + 64 * half + 128 * i, w[i]);
      }
      for (const uint8_t*& block : blocks.column) block += F::kBytes;
    }
  }
}

inline __m512 to_float(__m512i v) {
  return _mm512_maskz_cvtepi32_ps(0xffff, v);
}

// Some rows by 32 columns over one group of a record.
template <class F, int kRows>
inline void add_group(const uint8_t* record, const uint8_t* w, int group, __m512 (&acc)[kRows][2]) {
  constexpr int kSteps = 8 / F::kGroups;
  __m512i dots[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    const int minus = F::kGroups == 1 ? load_int(record + 160 + 4 * r) + load_int(record + 176 + 4 * r)
                                      : load_int(record + 160 + 16 * group + 4 * r);
    dots[r][0] = dots[r][1] = _mm512_set1_epi32(kTileOffset<F> * minus);
  }
#pragma GCC unroll 8
  for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
    const __m512i left = _mm512_loadu_si512(w + 128 * step), right = _mm512_loadu_si512(w + 128 * step + 64);
    for (int r = 0; r < kRows; ++r) {
      const __m512i q = _mm512_set1_epi32(load_int(record + 32 * r + 4 * step));
      dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], left, q);
      dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], right, q);
    }
  }
  const float* scales = reinterpret_cast<const float*>(w + kFloats) + kTileColumns * group;
  const float* x_scale = reinterpret_cast<const float*>(record + 128);
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) {
      const __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(scales + 16 * half), _mm512_set1_ps(x_scale[r]));
      acc[r][half] = _mm512_fmadd_ps(to_float(dots[r][half]), scale, acc[r][half]);
    }
  }
}

template <class F, int kRows>
void multiply_rows(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
                   float* out, int64_t stride) {
  __m512 acc[kRows][2];
  for (auto& row : acc) row[0] = row[1] = _mm512_setzero_ps();
  for (int64_t b = 0; b < k / 32; ++b) {
    const uint8_t *record = packed + b * kRowRecord, *w = tile + b * kRecord;
    for (int group = 0; group < F::kGroups; ++group) add_group<F>(record, w, group, acc);
    if constexpr (F::kMin) {
      const float* mins = reinterpret_cast<const float*>(w + kFloats) + kTileColumns;
      const float* sums = reinterpret_cast<const float*>(record + 144);
      for (int r = 0; r < kRows; ++r) {
        acc[r][0] = _mm512_fmadd_ps(_mm512_loadu_ps(mins), _mm512_set1_ps(sums[r]), acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(_mm512_loadu_ps(mins + 16), _mm512_set1_ps(sums[r]), acc[r][1]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
    float values[kTileColumns];
    _mm512_storeu_ps(values, acc[r][0]);
    _mm512_storeu_ps(values + 16, acc[r][1]);
    for (int64_t c = 0; c < columns; ++c) out[r * stride + c] = values[c];
  }
}

template <class F>
void multiply(const uint8_t* packed, const uint8_t* tile, int64_t k, int64_t rows, int64_t columns,
              float* out, int64_t stride) {
  const auto run = rows <= 2 ? multiply_rows<F, 2> : multiply_rows<F, kTileRows>;
  run(packed, tile, k, rows, columns, out, stride);
}

void pack_rows(const float* x, int64_t stride, int64_t rows, int64_t k, uint8_t* packed) {
  kAvx2Tile.pack_rows(x, stride, rows, k, packed);
}

// Weights are asked for this many bytes before they are read: sixteen streams are more than the processor's
// own prefetchers follow.
constexpr int64_t kAhead = 1024;

// The scales or minima of sixteen columns.
inline __m512 sixteen_floats(const __m128& a, const __m128& b, const __m128& c, const __m128& d) {
  const __m512d low = _mm512_castps_pd(_mm512_castps256_ps512(_mm256_set_m128(b, a)));
  return _mm512_castpd_ps(_mm512_maskz_insertf64x4(0xff, low, _mm256_castps_pd(_mm256_set_m128(d, c)), 1));
}

// Where a row of a packed group has its bytes, its scale (and, 4 floats on, its sum) and its `minus`.
struct PackedRow {
  const uint8_t* q;
  const float* scale;
  const uint8_t* minus;
};

inline PackedRow packed_row(const uint8_t* record, int64_t group_bytes, int r) {
  const uint8_t* const group = record + r / kTileRows * group_bytes;
  const int i = r % kTileRows;
  return {group + 32 * i, reinterpret_cast<const float*>(group + 128) + i, group + 160 + 4 * i};
}

// Some rows by sixteen columns over 32 elements. record: those of the first four rows.
template <class F, int kRows>
inline void add_elements(const uint8_t* record, int64_t group_bytes, const Sixteen& blocks, int sub,
                         const __m512* scale, __m512 min, __m512 (&acc)[kRows]) {
  constexpr int kSteps = 8 / F::kGroups;
  __m512i w[8];
  load_sixteen<F>(blocks.column, sub, w);
#pragma GCC unroll 2
  for (int group = 0; group < F::kGroups; ++group) {
    __m512i dots[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* const minus = packed_row(record, group_bytes, r).minus;
      const int both =
          F::kGroups == 1 ? load_int(minus) + load_int(minus + 16) : load_int(minus + 16 * group);
      dots[r] = _mm512_set1_epi32(kTileOffset<F> * both);
    }
#pragma GCC unroll 8
    for (int step = group * kSteps; step < (group + 1) * kSteps; ++step) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const uint8_t* const q = packed_row(record, group_bytes, r).q + 4 * step;
        dots[r] = _mm512_dpbusd_epi32(dots[r], w[step], _mm512_set1_epi32(load_int(q)));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float* const x_scale = packed_row(record, group_bytes, r).scale;
      const __m512 both = _mm512_mul_ps(scale[group], _mm512_set1_ps(x_scale[0]));
      acc[r] = _mm512_fmadd_ps(to_float(dots[r]), both, acc[r]);
      if (F::kMin) acc[r] = _mm512_fmadd_ps(min, _mm512_set1_ps(x_scale[4]), acc[r]);
    }
  }
}

// Up to kRows rows; each column of sixteen is a stream of its own.
template <class F, int kRows>
void dot_some_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
                   int64_t stride) {
  const int64_t group_bytes = k / 32 * kRowRecord;
  for (int64_t c = 0; c < weights.step && c < weights.columns; ++c) {
    Sixteen blocks = sixteen_columns(weights, c, weights.step);
    __m512 acc[kRows];
    for (__m512& row : acc) row = _mm512_setzero_ps();
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      __m128 scales[4][F::kSubs * F::kGroups], mins[4][F::kSubs];
      for (int quad = 0; quad < 4; ++quad) F::scales(blocks.column + 4 * quad, scales[quad], mins[quad]);
      for (int sub = 0; sub < F::kSubs; ++sub) {
        __m512 scale[F::kGroups], min = _mm512_setzero_ps();
        for (int group = 0; group < F::kGroups; ++group) {
          const int i = sub * F::kGroups + group;
          scale[group] = sixteen_floats(scales[0][i], scales[1][i], scales[2][i], scales[3][i]);
        }
        if constexpr (F::kMin) min = sixteen_floats(mins[0][sub], mins[1][sub], mins[2][sub], mins[3][sub]);
        add_elements<F>(packed + (b + sub) * kRowRecord, group_bytes, blocks, sub, scale, min, acc);
      }
      for (const uint8_t*& block : blocks.column) {
        for (int line = 0; line < F::kBytes; line += 64)
          _mm_prefetch(reinterpret_cast<const char*>(block + kAhead + line), _MM_HINT_T0);
        block += F::kBytes;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float values[16];
      _mm512_storeu_ps(values, acc[r]);
      store_columns(values, 16, weights.columns, c, weights.step, out + r * stride);
    }
  }
}

template <class F>
void dot_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t stride) {
  const auto run = rows <= 2   ? dot_some_rows<F, 2>
                   : rows <= 4 ? dot_some_rows<F, 4>
                   : rows <= 6 ? dot_some_rows<F, 6>
                               : dot_some_rows<F, 8>;
  run(packed, rows, k, weights, out, stride);
}

template <class F>
constexpr StreamCounts kStreams = {16, 16};

}  // namespace

const FewRowsKernels kAvx512FewRows = {
    .streams = FATHOM_PER_FORMAT(kStreams),
    .dot_rows = FATHOM_PER_FORMAT(dot_rows),
};

const TileKernels kAvx512Tile = {
    .columns = kTileColumns,
    .pack_rows = pack_rows,
    .unpack = FATHOM_PER_FORMAT(unpack_tile),
    .multiply = FATHOM_PER_FORMAT(multiply),
};

}  // namespace fathom
