// AVX-512 with VNNI for many rows: tiles of 32 columns, two vectors of 16. vpdpbusd multiplies unsigned with
// signed bytes and adds four products to an int32 without saturating; q8_0's weights are stored with 128
// added for it. One row goes through AVX2's kernels (memory is what limits it), and so does the packing of
// rows: see pack_rows there.
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

// 32 elements of each of sixteen columns, transposed into a record.
template <class F>
inline void unpack_sixteen(const uint8_t* const* blocks, int sub, uint8_t* record) {
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
    _mm512_storeu_si512(record + 128 * i,
                        _mm512_maskz_shuffle_i32x4(0xffff, eights[0][i], eights[1][i], 0x88));
    _mm512_storeu_si512(record + 128 * (4 + i),
                        _mm512_maskz_shuffle_i32x4(0xffff, eights[0][i], eights[1][i], 0xdd));
  }
}

// A record of a tile: for each 4 elements, 32 columns side by side, as unsigned bytes; after these 1024 bytes
// the scales of the first group (32 floats), and those of the second or the minima.
template <class F>
void unpack_tile(const Weights& weights, int64_t k, uint8_t* tile) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* blocks[16];
    for (int quad = 0; quad < 4; ++quad) {
      const Four rows = four_rows(weights.data, weights.stride, weights.columns, 16 * half + 4 * quad, 1);
      for (int c = 0; c < 4; ++c) blocks[4 * quad + c] = rows.row[c];
    }
    for (int64_t b = 0; b < k / 32; b += F::kSubs) {
      uint8_t* const records = tile + b * kRecord;
      for (int quad = 0; quad < 4; ++quad) {
        __m128 scale[F::kSubs * F::kGroups], min[F::kSubs];
        F::scales(blocks + 4 * quad, scale, min);
        for (int sub = 0; sub < F::kSubs; ++sub) {
          float* floats = reinterpret_cast<float*>(records + sub * kRecord + kFloats) + 16 * half + 4 * quad;
          for (int group = 0; group < F::kGroups; ++group)
            _mm_storeu_ps(floats + kTileColumns * group, scale[sub * F::kGroups + group]);
          if (F::kMin) _mm_storeu_ps(floats + kTileColumns, min[sub]);
        }
      }
      for (int sub = 0; sub < F::kSubs; ++sub)
        unpack_sixteen<F>(blocks, sub, records + sub * kRecord + 64 * half);
      for (const uint8_t*& block : blocks) block += F::kBytes;
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

}  // namespace

const TileKernels kAvx512Tile = {
    .columns = kTileColumns,
    .pack_rows = pack_rows,
    .unpack = FATHOM_PER_FORMAT(unpack_tile),
    .multiply = FATHOM_PER_FORMAT(multiply),
};

}  // namespace fathom
