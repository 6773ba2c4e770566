// Tiles of 32 × 32 with AMX: an instruction multiplies 16 rows by 16 columns by 32 elements of k, and four of
// them share two loads of each factor. B's panels are pairs along k (gemm_bf16_pairs.h); A's hold, for each
// 32 elements of k, its lines one after the other, 32 elements of each.
#include <immintrin.h>

#include "quant/gemm_bf16_pairs.h"

namespace fathom {
namespace {

constexpr int kRows = 32, kColumns = 32, kStep = 32;

inline void store_half(uint16_t* to, __m256i elements) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), elements);
}

// Elements [begin, k) one by one, and the zeros that fill the panel.
template <class T>
void pack_a_slowly(const T* from, const GemmFactor& factor, int64_t lines, int64_t begin, int64_t k,
                   uint16_t* panel) {
  for (int64_t i = begin; i < (k + kStep - 1) / kStep * kStep; ++i) {
    uint16_t* to = panel + i / kStep * kStep * kRows + i % kStep;
    for (int64_t line = 0; line < kRows; ++line) {
      const bool there = line < lines && i < k;
      to[line * kStep] = there ? load_one(from[line * factor.line_step + i * factor.k_step]) : 0;
    }
  }
}

template <class T>
void pack_a_along_k(const T* from, int64_t line_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + kStep <= k; i += kStep, panel += kRows * kStep) {
    for (int64_t line = 0; line < kRows; ++line) {
      store_half(panel + line * kStep, load_sixteen(from + line * line_step + i));
      store_half(panel + line * kStep + 16, load_sixteen(from + line * line_step + i + 16));
    }
  }
}

// A 16 × 16 block of 32-bit numbers (here pairs of elements): row r of `rows` becomes column r.
inline void transpose(__m512i rows[16]) {
  __m512i by[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    by[i] = _mm512_maskz_unpacklo_epi32(kAll, rows[i], rows[i + 1]);
    by[i + 1] = _mm512_maskz_unpackhi_epi32(kAll, rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // within 128 bits: rows[i + c] is column c (mod 4) of rows i … i + 3
    rows[i] = _mm512_maskz_unpacklo_epi64(0xff, by[i], by[i + 2]);
    rows[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, by[i], by[i + 2]);
    rows[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, by[i + 1], by[i + 3]);
    rows[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, by[i + 1], by[i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // the four 128-bit parts of four vectors, transposed as a 4 × 4 block
    const __m512i low0 = _mm512_maskz_shuffle_i32x4(kAll, rows[c], rows[4 + c], 0x44),
                  high0 = _mm512_maskz_shuffle_i32x4(kAll, rows[c], rows[4 + c], 0xee),
                  low1 = _mm512_maskz_shuffle_i32x4(kAll, rows[8 + c], rows[12 + c], 0x44),
                  high1 = _mm512_maskz_shuffle_i32x4(kAll, rows[8 + c], rows[12 + c], 0xee);
    by[c] = _mm512_maskz_shuffle_i32x4(kAll, low0, low1, 0x88);
    by[4 + c] = _mm512_maskz_shuffle_i32x4(kAll, low0, low1, 0xdd);
    by[8 + c] = _mm512_maskz_shuffle_i32x4(kAll, high0, high1, 0x88);
    by[12 + c] = _mm512_maskz_shuffle_i32x4(kAll, high0, high1, 0xdd);
  }
  __builtin_memcpy(rows, by, sizeof by);
}

// Lines side by side: sixteen pairs of k of sixteen lines are transposed.
template <class T>
void pack_a_across(const T* from, int64_t k_step, int64_t k, uint16_t* panel) {
  for (int64_t i = 0; i + kStep <= k; i += kStep, panel += kRows * kStep) {
    for (int64_t line = 0; line < kRows; line += 16) {
      __m512i pairs[16];
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) pairs[p] = interleaved_pairs(from + (i + 2 * p) * k_step + line, k_step);
      transpose(pairs);
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_storeu_si512(panel + (line + p) * kStep, pairs[p]);
    }
  }
}

template <class T>
void pack_a_typed(const T* from, const GemmFactor& factor, int64_t lines, int64_t k, uint16_t* panel) {
  int64_t done = 0;
  if (lines == kRows) {
    done = k / kStep * kStep;
    if (factor.k_step == 1)
      pack_a_along_k(from, factor.line_step, k, panel);
    else
      pack_a_across(from, factor.k_step, k, panel);
  }
  pack_a_slowly(from, factor, lines, done, k, panel);
}

void pack_a(const GemmFactor& factor, int64_t lines, int64_t k, void* to) {
  auto* panel = static_cast<uint16_t*>(to);
  if (factor.bf16)
    pack_a_typed(static_cast<const uint16_t*>(factor.data), factor, lines, k, panel);
  else
    pack_a_typed(static_cast<const float*>(factor.data), factor, lines, k, panel);
}

// Of a thread: eight tiles of 16 rows by 64 bytes. The layout is the processor's.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Tiles 0 … 3 hold the sums, 4 and 5 two halves of A's rows, 6 and 7 of B's columns.
void multiply(const void* a_panel, const void* b_panel, int64_t k, const GemmTile& tile) {
  static const TileShapes shapes;
  const auto *a = static_cast<const uint16_t*>(a_panel), *b = static_cast<const uint16_t*>(b_panel);
  constexpr int kLineBytes = kStep * 2, kPairBytes = kColumns * 4;
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t at = 0; at < k; at += kStep, a += kRows * kStep, b += kColumns * kStep) {
    _tile_loadd(4, a, kLineBytes);
    _tile_loadd(6, b, kPairBytes);
    _tile_loadd(7, b + 32, kPairBytes);
    _tile_loadd(5, a + 16 * kStep, kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float sums[kRows][kColumns];
  _tile_stored(0, &sums[0][0], sizeof sums[0]);
  _tile_stored(1, &sums[0][16], sizeof sums[0]);
  _tile_stored(2, &sums[16][0], sizeof sums[0]);
  _tile_stored(3, &sums[16][16], sizeof sums[0]);
  _tile_release();
  for (int64_t r = 0; r < tile.rows; ++r) {
    store_sixteen(_mm512_load_ps(&sums[r][0]), tile, r, 0);
    store_sixteen(_mm512_load_ps(&sums[r][16]), tile, r, 16);
  }
}

}  // namespace

const GemmKernels kGemmBf16Amx = {.rows = kRows,
                                  .columns = kColumns,
                                  .step = kStep,
                                  .element = 2,
                                  .pack_a = pack_a,
                                  .pack_b = pack_pairs<kColumns, kStep>,
                                  .multiply = multiply};

}  // namespace fathom
