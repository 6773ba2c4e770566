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

__device__ inline float exp_less(float x, float by) {
  return expf(x - by);
}
__device__ inline float4 exp_less(float4 x, float by) {
  return {exp_less(x.x, by), exp_less(x.y, by), exp_less(x.z, by), exp_less(x.w, by)};
}

__device__ inline double sum_of_four(float4 x) {
  return (static_cast<double>(x.x) + static_cast<double>(x.y)) +
         (static_cast<double>(x.z) + static_cast<double>(x.w));
}

// Σ eˣ as it grows: exponentials in f32 below the largest element so far, their sum in f64.
struct PowerSum {
  float largest = -FLT_MAX;  // an element of −∞ is still below
  double sum = 0;

  // Returns what the powers so far are to be multiplied by: 1 unless an element is larger than those before.
  __device__ double raise(float4 x) {
    const float most = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    if (!(most > largest)) return 1.0;
    const double factor = exp(static_cast<double>(largest) - static_cast<double>(most));
    largest = most;
    sum *= factor;
    return factor;
  }
  __device__ void add(float4 x) {
    raise(x);
    sum += sum_of_four(exp_less(x, largest));
  }
  // The block's: every thread gets it. Returns what this thread's powers are to be multiplied by.
  __device__ double join() {
    const float all = block_max(largest);
    const double factor = exp(static_cast<double>(largest) - static_cast<double>(all));
    sum = block_sum(sum * factor);
    largest = all;
    return factor;
  }
  __device__ double log() const { return static_cast<double>(largest) + ::log(sum); }
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
