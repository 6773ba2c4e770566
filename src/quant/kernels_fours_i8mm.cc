// Weights in fours (fours.h). What is read from memory is multiplied as it is: sdot for one row of
// activations, smmla for more.
#include "quant/kernels.h"
#include "quant/neon_fours.h"

namespace fathom {
namespace {

constexpr int kTileRecord = 8 * kTileRecordColumn;

template <class F>
void dot_row(const QuantRow& x, int64_t k, const Weights& weights, float* out) {
  constexpr int kStreams = 2;
  for (int64_t first = 0; first < weights.step; ++first) {
    Streams<kStreams> at(weights, first);
    float32x4_t acc[kStreams] = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
    for (int64_t b = 0; b < k / 32; ++b) {
#pragma GCC unroll 2
      for (int s = 0; s < kStreams; ++s) {
        ask_ahead<F>(at.record[s]);
        acc[s] = add_block<F>(acc[s], at.record[s], x, b);
        at.record[s] += F::kBytes;
      }
    }
    for (int s = 0; s < kStreams; ++s) {
      if (at.four[s] < at.fours) vst1q_f32(out + 4 * at.four[s], acc[s]);
    }
  }
}

// Pairs of rows (see pack_rows for their records, which begin at x; four rows more are `group_bytes` on) with
// four columns.
template <class F, int kPairs>
inline void add_pairs(const uint8_t* x, int64_t group_bytes, const uint8_t* record,
                      float32x4_t (&acc)[kPairs][2]) {
  const auto at = [&](int p, int offset) { return x + p / 2 * group_bytes + offset + 16 * (p % 2); };
  const Zipped w = F::pieces(record);
  int32x4_t sums[kPairs][2];
#pragma GCC unroll 4
  for (auto& pair : sums) pair[0] = pair[1] = vdupq_n_s32(0);
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const int8x16_t q = vreinterpretq_s8_u8(vld1q_u8(at(p, 32 * step)));
      sums[p][0] = vmmlaq_s32(sums[p][0], q, w.pair[step][0]);
      sums[p][1] = vmmlaq_s32(sums[p][1], q, w.pair[step][1]);
    }
  }
  const PairsOf scales(scales_of<F>(record)), minima(minima_of<F>(record));
#pragma GCC unroll 4
  for (int p = 0; p < kPairs; ++p) {
    const float32x4_t x_scale = vreinterpretq_f32_u8(vld1q_u8(at(p, 128)));
    acc[p][0] = vfmaq_f32(acc[p][0], float_of<F>(sums[p][0]), vmulq_f32(scales.left, x_scale));
    acc[p][1] = vfmaq_f32(acc[p][1], float_of<F>(sums[p][1]), vmulq_f32(scales.right, x_scale));
    if constexpr (F::kMin) {
      const float32x4_t x_sum = vreinterpretq_f32_u8(vld1q_u8(at(p, 160)));
      acc[p][0] = vfmaq_f32(acc[p][0], minima.left, x_sum);
      acc[p][1] = vfmaq_f32(acc[p][1], minima.right, x_sum);
    }
  }
}

template <class F, int kPairs, int kStreams>
void dot_pairs(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
               int64_t stride) {
  const int64_t group_bytes = k / 32 * kRowRecord;
  for (int64_t first = 0; first < weights.step; ++first) {
    Streams<kStreams> at(weights, first);
    float32x4_t acc[kStreams][kPairs][2];
    for (auto& stream : acc) {
      for (auto& pair : stream) pair[0] = pair[1] = vdupq_n_f32(0.0f);
    }
    for (int64_t b = 0; b < k / 32; ++b) {
#pragma GCC unroll 2
      for (int s = 0; s < kStreams; ++s) {
        ask_ahead<F>(at.record[s]);
        add_pairs<F>(packed + b * kRowRecord, group_bytes, at.record[s], acc[s]);
        at.record[s] += F::kBytes;
      }
    }
    for (int s = 0; s < kStreams; ++s) {
      if (at.four[s] < at.fours) store_four(acc[s], rows, out + 4 * at.four[s], stride);
    }
  }
}

template <class F>
void dot_rows(const uint8_t* packed, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t stride) {
  if (rows <= 2) return dot_pairs<F, 1, 2>(packed, rows, k, weights, out, stride);
  if (rows > 4) return dot_pairs<F, 4, 1>(packed, rows, k, weights, out, stride);
  if constexpr (F::kFourRowsInAssembly)
    dot_four_rows_q8_0_fours_i8mm(packed, rows, k, weights, out, stride);
  else
    dot_pairs<F, 2, 2>(packed, rows, k, weights, out, stride);
}

// To the records of kI8mmTile.
template <class F>
void unpack_tile(const Weights& weights, int64_t k, uint8_t* tile) {
  for (int64_t b = 0; b < k / 32; ++b) {
    uint8_t* to = tile + b * kTileRecord;
    for (int quad = 0; quad < 2 && 4 * quad < weights.columns; ++quad) {
      const uint8_t* record = weights.data + 4 * quad * weights.stride + b * F::kBytes;
      const Zipped w = F::integers(record);
      for (int step = 0; step < 4; ++step) {
        vst1q_u8(to + 64 * step + 32 * quad, vreinterpretq_u8_s8(w.pair[step][0]));
        vst1q_u8(to + 64 * step + 32 * quad + 16, vreinterpretq_u8_s8(w.pair[step][1]));
      }
      PairsOf(scales_of<F>(record)).store(to + 256 + 32 * quad);
      if (F::kMin) PairsOf(minima_of<F>(record)).store(to + 320 + 32 * quad);
    }
  }
}

// Null for formats without the layout.
using DotRow = void (*)(const QuantRow&, int64_t, const Weights&, float*);
template <class F>
constexpr DotRow kDotRow = dot_row<F>;
template <>
constexpr DotRow kDotRow<FourQ4_0> = dot_row_q4_0_fours_i8mm;
template <>
constexpr DotRow kDotRow<NoFour> = nullptr;

using DotRows = void (*)(const uint8_t*, int64_t, int64_t, const Weights&, float*, int64_t);
template <class F>
constexpr DotRows kDotRows = dot_rows<F>;
template <>
constexpr DotRows kDotRows<NoFour> = nullptr;

using Unpack = void (*)(const Weights&, int64_t, uint8_t*);
template <class F>
constexpr Unpack kUnpack = unpack_tile<F>;
template <>
constexpr Unpack kUnpack<NoFour> = nullptr;

}  // namespace

const FoursKernels kI8mmFours = {
    .streams = {.up_to_four_rows = 2, .more = 1},
    .dot_row = FATHOM_PER_FOURS(kDotRow),
    .dot_rows = FATHOM_PER_FOURS(kDotRows),
    .unpack = FATHOM_PER_FOURS(kUnpack),
};

}  // namespace fathom
