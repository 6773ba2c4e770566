// AVX2 products with f32 activations: eight partial sums along k (one vector) per output.
#include <immintrin.h>

#include "quant/kernels.h"

namespace fathom {
namespace {

struct LoadF32 {
  static constexpr int kBytes = 4;
  static __m256 at(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
  static constexpr int kBytes = 2;
  static __m256 at(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
};
struct LoadBf16 {
  static constexpr int kBytes = 2;
  static __m256 at(const uint8_t* p) {
    const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
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

// (s0 + s1) + (s2 + s3) with s the sum of the halves.
inline float sum_of(__m256 p) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
  s = _mm_hadd_ps(s, s);
  return _mm_cvtss_f32(_mm_hadd_ps(s, s));
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
  __m256 sums[kRows][kColumns], w[kColumns];
  for (auto& row : sums) {
    for (__m256& p : row) p = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < whole; i += 8) {
    for (int c = 0; c < kColumns; ++c) w[c] = Load::at(ws[c] + Load::kBytes * i);
    for (int r = 0; r < kRows; ++r) {
      const __m256 xv = LoadF32::at(xs[r] + 4 * i);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm256_fmadd_ps(w[c], xv, sums[r][c]);
    }
  }
  if (whole < k) {
    for (int c = 0; c < kColumns; ++c) w[c] = Load::at(w_tails.bytes[c]);
    for (int r = 0; r < kRows; ++r) {
      const __m256 xv = LoadF32::at(x_tails.bytes[r]);
      for (int c = 0; c < kColumns; ++c) sums[r][c] = _mm256_fmadd_ps(w[c], xv, sums[r][c]);
    }
  }
  // Whole loops with a condition inside: they unroll, and the sums stay in registers.
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const float sum = sum_of(sums[r][c]);
      if (r < rows && column + c * step < weights.columns) out[r * out_stride + column + c * step] = sum;
    }
  }
}

void multiply(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t out_stride) {
  for (int64_t r = 0; r < rows; r += 4) {
    const float* xr = x + r * x_stride;
    float* to = out + r * out_stride;
    if (rows - r == 1) {
      for (int64_t c = 0; c < weights.columns; c += 4) {
        dot_block<LoadF32, 1, 4>(xr, x_stride, 1, k, weights, c, 1, to, out_stride);
      }
    } else {
      for (int64_t c = 0; c < weights.columns; c += 3) {
        dot_block<LoadF32, 4, 3>(xr, x_stride, rows - r, k, weights, c, 1, to, out_stride);
      }
    }
  }
}

// The rows follow one another, so that the second ones find the weights in a cache.
template <class Load>
void dot_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, const Weights& weights, float* out,
              int64_t out_stride) {
  const auto run = rows == 1   ? dot_block<Load, 1, 4>
                   : rows == 2 ? dot_block<Load, 2, 4>
                               : dot_block<Load, 4, 3>;
  for (int64_t c = 0; c < weights.step; ++c) {
    for (int64_t r = 0; r < rows; r += 4)
      run(x + r * x_stride, x_stride, rows - r, k, weights, c, weights.step, out + r * out_stride,
          out_stride);
  }
}

template <class Load>
void widen(const uint8_t* in, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, Load::at(in + Load::kBytes * i));
  if (i == n) return;
  float last[8];
  const Tails<1, Load::kBytes> tail(&in, i, n - i);
  _mm256_storeu_ps(last, Load::at(tail.bytes[0]));
  for (int j = 0; i < n; ++i, ++j) out[i] = last[j];
}

}  // namespace

const FloatKernels kAvx2Float = {
    .multiply = multiply,
    .dot_rows_f32 = dot_rows<LoadF32>,
    .dot_rows_f16 = dot_rows<LoadF16>,
    .dot_rows_bf16 = dot_rows<LoadBf16>,
    .widen_f16 = widen<LoadF16>,
    .widen_bf16 = widen<LoadBf16>,
};

}  // namespace fathom
