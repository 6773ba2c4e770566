// NEON products with f32 activations: eight partial sums along k (two vectors) per output.
#include <arm_neon.h>

#include "quant/kernels.h"

namespace fathom {
namespace {

struct F32x8 {
  float32x4_t low, high;
};

struct LoadF32 {
  static constexpr int kBytes = 4;
  static F32x8 at(const uint8_t* p) {
    return {vreinterpretq_f32_u8(vld1q_u8(p)), vreinterpretq_f32_u8(vld1q_u8(p + 16))};
  }
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

// The last n < 8 elements, and zeros after them.
template <class Load>
inline F32x8 load_last(const uint8_t* p, int64_t n) {
  uint8_t padded[8 * Load::kBytes] = {};
  __builtin_memcpy(padded, p, static_cast<size_t>(n * Load::kBytes));
  return Load::at(padded);
}

template <int kRows, int kColumns>
struct Sums {
  F32x8 p[kRows][kColumns];
};

template <int kRows, int kColumns>
inline void add_eight(Sums<kRows, kColumns>& sums, const F32x8* x, const F32x8* w) {
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      F32x8& p = sums.p[r][c];
      p = {vfmaq_f32(p.low, w[c].low, x[r].low), vfmaq_f32(p.high, w[c].high, x[r].high)};
    }
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
  Sums<kRows, kColumns> sums;
  for (auto& row : sums.p) {
    for (F32x8& p : row) p = {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
  }
  F32x8 xv[kRows], wv[kColumns];
  int64_t i = 0;
  for (; i + 8 <= k; i += 8) {
    for (int r = 0; r < kRows; ++r) xv[r] = LoadF32::at(xs[r] + 4 * i);
    for (int c = 0; c < kColumns; ++c) wv[c] = Load::at(ws[c] + Load::kBytes * i);
    add_eight(sums, xv, wv);
  }
  if (i < k) {
    for (int r = 0; r < kRows; ++r) xv[r] = load_last<LoadF32>(xs[r] + 4 * i, k - i);
    for (int c = 0; c < kColumns; ++c) wv[c] = load_last<Load>(ws[c] + Load::kBytes * i, k - i);
    add_eight(sums, xv, wv);
  }
  for (int r = 0; r < kRows && r < rows; ++r) {
    for (int c = 0; c < kColumns && column + c * step < weights.columns; ++c) {
      const float32x4_t halves = vaddq_f32(sums.p[r][c].low, sums.p[r][c].high);
      const float32x4_t pairs = vpaddq_f32(halves, halves);
      out[r * out_stride + column + c * step] = vgetq_lane_f32(pairs, 0) + vgetq_lane_f32(pairs, 1);
    }
  }
}

void multiply(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t out_stride) {
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t left = rows - r;
    const float* xr = x + r * x_stride;
    float* to = out + r * out_stride;
    if (left == 1) {
      for (int64_t c = 0; c < weights.columns; c += 4) {
        dot_block<LoadF32, 1, 4>(xr, x_stride, left, k, weights, c, 1, to, out_stride);
      }
    } else if (left == 2) {
      for (int64_t c = 0; c < weights.columns; c += 4) {
        dot_block<LoadF32, 2, 4>(xr, x_stride, left, k, weights, c, 1, to, out_stride);
      }
    } else {
      for (int64_t c = 0; c < weights.columns; c += 3) {
        dot_block<LoadF32, 4, 3>(xr, x_stride, left, k, weights, c, 1, to, out_stride);
      }
    }
  }
}

template <class Load>
void dot_row(const float* x, int64_t k, const Weights& weights, float* out) {
  for (int64_t c = 0; c < weights.step; ++c)
    dot_block<Load, 1, 4>(x, 0, 1, k, weights, c, weights.step, out, 0);
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
  const F32x8 v = load_last<Load>(in + Load::kBytes * i, n - i);
  float last[8];
  vst1q_f32(last, v.low);
  vst1q_f32(last + 4, v.high);
  for (int j = 0; i < n; ++i, ++j) out[i] = last[j];
}

}  // namespace

const FloatKernels kDotprodFloat = {
    .multiply = multiply,
    .dot_row_f32 = dot_row<LoadF32>,
    .dot_row_f16 = dot_row<LoadF16>,
    .dot_row_bf16 = dot_row<LoadBf16>,
    .widen_f16 = widen<LoadF16>,
    .widen_bf16 = widen<LoadBf16>,
};

}  // namespace fathom
