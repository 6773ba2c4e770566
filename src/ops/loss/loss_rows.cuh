// What the losses' CUDA kernels share. A block has a row, thread t its elements 4t … 4t + 3 and those
// 4 · threads further. The number of threads depends on the width alone, and so does the order of a row's
// sums.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>

#include "ops/kernels/warp.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {

inline unsigned int loss_threads(int64_t width, int64_t most) {
  const int64_t fours = (width + 3) / 4;
  return static_cast<unsigned int>(std::min((fours + kWarp - 1) / kWarp * kWarp, most));
}

__device__ inline int64_t first_four() {
  return 4 * static_cast<int64_t>(threadIdx.x);
}
__device__ inline int64_t next_four() {
  return 4 * static_cast<int64_t>(blockDim.x);
}

// eˣ⁻ᵇʸ; its relative error is some 2^-22, and more only where it is far below 1.
__device__ inline float exp_less(float x, float by) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"((x - by) * 1.44269504f));
  return power;
}
// Elements of a row side by side.
template <int kCount>
struct Floats {
  float at[kCount];
};

template <int kCount>
__device__ inline Floats<kCount> exp_less(Floats<kCount> x, float by) {
#pragma unroll
  for (float& each : x.at) each = exp_less(each, by);
  return x;
}

// In pairs of halves: (x₀ + x₂) + (x₁ + x₃) of four.
template <int kCount>
__device__ inline float sum_of(const Floats<kCount>& x) {
  Floats<kCount / 2> half;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) half.at[i] = x.at[i] + x.at[i + kCount / 2];
  return sum_of(half);
}
template <>
__device__ inline float sum_of(const Floats<1>& x) {
  return x.at[0];
}

// Σ eˣ as it grows, below the largest element so far: a thread's in f32, the block's in f64.
struct PowerSum {
  float largest = -FLT_MAX;  // an element of −∞ is still below
  float sum = 0;
  double whole = 0;

  // Returns what the powers so far are to be multiplied by.
  template <int kCount>
  __device__ float raise(const Floats<kCount>& x) {
    float most = largest;
#pragma unroll
    for (const float each : x.at) most = fmaxf(most, each);
    const float factor = exp_less(largest, most);
    largest = most;
    sum *= factor;
    return factor;
  }
  template <int kCount>
  __device__ void add(const Floats<kCount>& x) {
    raise(x);
    sum += sum_of(exp_less(x, largest));
  }
  // The block's: every thread gets it. Returns what this thread's powers are to be multiplied by.
  __device__ float join() {
    const float all = block_max(largest), factor = exp_less(largest, all);
    whole = block_sum(static_cast<double>(sum * factor));
    largest = all;
    return factor;
  }
  __device__ double log() const {
    return static_cast<double>(largest) + ::log(whole);
  }
  __device__ float log_f32() const {
    return largest + logf(static_cast<float>(whole));
  }
};

inline constexpr int kLossSumThreads = 1024;

// One block: thread t adds rows t, t + kLossSumThreads, …
static __global__ void sum_of_rows(const double* losses, int64_t rows, const int32_t* count, float* out) {
  const int64_t present = count ? *count : rows;
  double sum = 0;
  for (int64_t r = threadIdx.x; r < present; r += kLossSumThreads) sum += losses[r];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = static_cast<float>(sum);
}

}  // namespace fathom
