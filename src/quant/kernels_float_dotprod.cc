// NEON products with f32 activations: eight partial sums along k (two vectors) per output.
#include <arm_neon.h>

#include "quant/kernels.h"

namespace fathom {
namespace {

struct F32x8 {
  float32x4_t low, high;
};

inline float32x4_t load_four(const uint8_t* p) {
  return vreinterpretq_f32_u8(vld1q_u8(p));
}

struct LoadF32 {
  static constexpr int kBytes = 4;
  static F32x8 at(const uint8_t* p) { return {load_four(p), load_four(p + 16)}; }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static F32x8 at(const uint8_t* p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
    return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
  }
};
struct LoadBf16 {
  static constexpr int kBytes = 2;
  static F32x8 at(const uint8_t* p) {
    const uint16x8_t halves = vreinterpretq_u16_u8(vld1q_u8(p));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(halves), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(halves, 16))};
  }
};

// The last n < 8 elements of some rows, and zeros after them. Copied before the sums are in registers: a call
// to memcpy would put them into memory.
template <int kRows, int kBytes>
struct Tails {
  uint8_t bytes[kRows][8 * kBytes];
  Tails(const uint8_t* const* rows, int64_t begin, int64_t n) {
    if (n == 0) return;  // nobody will look
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < 8 * kBytes; ++i) bytes[r][i] = i < n * kBytes ? rows[r][begin * kBytes + i] : 0;
    }
  }
};

// The partial sums of kRows x kColumns outputs: 0-3 in low, 4-7 in high.
template <int kRows, int kColumns>
struct Sums {
  float32x4_t low[kRows][kColumns], high[kRows][kColumns];
};

template <int kRows, int kColumns>
inline void add_eight(Sums<kRows, kColumns>& sums, int r, const F32x8& x, const F32x8* w) {
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    sums.low[r][c] = vfmaq_f32(sums.low[r][c], w[c].low, x.low);
    sums.high[r][c] = vfmaq_f32(sums.high[r][c], w[c].high, x.high);
  }
}

// The same for four elements of all rows and columns of f32 at `at` bytes, into one half of the sums.
template <int kRows, int kColumns>
inline void add_four(float32x4_t sums[kRows][kColumns], const uint8_t* const* xs, const uint8_t* const* ws,
                     int64_t at) {
  float32x4_t w[kColumns];
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) w[c] = load_four(ws[c] + at);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float32x4_t x = load_four(xs[r] + at);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sums[r][c] = vfmaq_f32(sums[r][c], w[c], x);
  }
}

// A whole tile: no column is looked at alone.
inline void store_whole(const Sums<4, 3>& sums, float* out, int64_t out_stride) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r, out += out_stride) {
    const float32x4_t a = vaddq_f32(sums.low[r][0], sums.high[r][0]),
                      b = vaddq_f32(sums.low[r][1], sums.high[r][1]),
                      c = vaddq_f32(sums.low[r][2], sums.high[r][2]);
    const float32x4_t all = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, c));
    vst1_f32(out, vget_low_f32(all));
    vst1q_lane_f32(out + 2, all, 2);
  }
}

// Rows and columns past the last are the last again; their results are dropped.
template <class Load, int kRows, int kColumns>
inline void dot_block(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                      int64_t column, int64_t step, float* out, int64_t out_stride) {
  const uint8_t *xs[kRows], *ws[kColumns];
  for (int r = 0; r < kRows; ++r)
    xs[r] = reinterpret_cast<const uint8_t*>(x + (r < rows ? r : rows - 1) * x_stride);
  for (int c = 0; c < kColumns; ++c) {
    const int64_t wanted = column + c * step < weights.columns ? column + c * step : weights.columns - 1;
    ws[c] = weights.data + wanted * weights.stride;
  }
  const int64_t whole = k / 8 * 8;
  const Tails<kRows, 4> x_tails(xs, whole, k - whole);
  const Tails<kColumns, Load::kBytes> w_tails(ws, whole, k - whole);
  Sums<kRows, kColumns> sums;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sums.low[r][c] = sums.high[r][c] = vdupq_n_f32(0.0f);
  }
  F32x8 w[kColumns];
  for (int64_t i = 0; i < whole; i += 8) {
    if constexpr (kRows * kColumns == 12) {  // 24 vectors of sums leave eight registers: a half at a time
      static_assert(Load::kBytes == 4, "add_four reads f32");
      add_four<kRows, kColumns>(sums.low, xs, ws, 4 * i);
      add_four<kRows, kColumns>(sums.high, xs, ws, 4 * i + 16);
      continue;
    }
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) w[c] = Load::at(ws[c] + Load::kBytes * i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_eight(sums, r, LoadF32::at(xs[r] + 4 * i), w);
  }
  if (whole < k) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) w[c] = Load::at(w_tails.bytes[c]);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) add_eight(sums, r, LoadF32::at(x_tails.bytes[r]), w);
  }
  if constexpr (kRows == 4 && kColumns == 3) {
    if (step == 1 && rows >= kRows && column + kColumns <= weights.columns)
      return store_whole(sums, out + column, out_stride);
  }
  // Whole loops with conditions inside: they unroll, and the sums stay in registers.
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const float32x4_t halves = vaddq_f32(sums.low[r][c], sums.high[r][c]);
      const float32x4_t pairs = vpaddq_f32(halves, halves);
      const float sum = vgetq_lane_f32(pairs, 0) + vgetq_lane_f32(pairs, 1);
      if (r < rows && column + c * step < weights.columns) out[r * out_stride + column + c * step] = sum;
    }
  }
}

// Columns [begin, end).
template <int kRows, int kColumns>
void multiply_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                   int64_t begin, int64_t end, float* out, int64_t out_stride) {
  for (int64_t c = begin; c < end; c += kColumns)
    dot_block<LoadF32, kRows, kColumns>(x, x_stride, rows, k, weights, c, 1, out, out_stride);
}

void multiply_block(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights,
                    int64_t begin, int64_t end, float* out, int64_t out_stride) {
  for (int64_t r = 0; r < rows; r += 4, x += 4 * x_stride, out += 4 * out_stride) {
    const int64_t left = rows - r;
    const auto run = left == 1 ? multiply_rows<1, 4> : left == 2 ? multiply_rows<2, 4> : multiply_rows<4, 3>;
    run(x, x_stride, left, k, weights, begin, end, out, out_stride);
  }
}

// Some columns stay in the first-level cache for some rows, and those in the second-level cache for the next
// columns; where the rows are too long for that, all columns pass by four rows at a time.
void multiply(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t out_stride) {
  constexpr int64_t kRows = 64, kColumns = 12, kCache = 32 << 10;
  const int64_t block = 4 * k * kColumns <= kCache ? kColumns : weights.columns;
  for (int64_t r = 0; r < rows; r += kRows) {
    const int64_t some = rows - r < kRows ? rows - r : kRows;
    for (int64_t c = 0; c < weights.columns; c += block) {
      const int64_t end = c + block < weights.columns ? c + block : weights.columns;
      multiply_block(x + r * x_stride, x_stride, some, k, weights, c, end, out + r * out_stride, out_stride);
    }
  }
}

// The rows follow one another, so that the second ones find the weights in a cache.
template <class Load>
void dot_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t out_stride) {
  const auto run = rows == 1   ? dot_block<Load, 1, 4>
                   : rows == 2 ? dot_block<Load, 2, 4>
                               : dot_block<Load, 2, 3>;
  for (int64_t c = 0; c < weights.step; ++c) {
    for (int64_t r = 0; r < rows; r += 2)
      run(x + r * x_stride, x_stride, rows - r, k, weights, c, weights.step, out + r * out_stride,
          out_stride);
  }
}

template <class Load>
void widen(const uint8_t* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const F32x8 v = Load::at(in + Load::kBytes * i);
    vst1q_f32(out + i, v.low);
    vst1q_f32(out + i + 4, v.high);
  }
  if (i == n) return;
  const Tails<1, Load::kBytes> tail(&in, i, n - i);
  const F32x8 v = Load::at(tail.bytes[0]);
  float last[8];
  vst1q_f32(last, v.low);
  vst1q_f32(last + 4, v.high);
  for (int j = 0; i < n; ++i, ++j) out[i] = last[j];
}

}  // namespace

const FloatKernels kDotprodFloat = {
    .multiply = multiply,
    .dot_rows_f32 = dot_rows<LoadF32>,
    .dot_rows_f16 = dot_rows<LoadF16>,
    .dot_rows_bf16 = dot_rows<LoadBf16>,
    .widen_f16 = widen<LoadF16>,
    .widen_bf16 = widen<LoadBf16>,
};

}  // namespace fathom
