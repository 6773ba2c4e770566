// Sums and maxima over a warp or a block, in one fixed order: lanes 16 apart first, then 8, 4, 2 and 1.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace fathom {

inline constexpr int kWarp = 32;
inline constexpr unsigned int kAllLanes = 0xffffffffu;

// Threads of a block that sums a row: they depend on its width alone, so that the row's bits do.
inline unsigned int row_sum_threads(int64_t width) {
  return static_cast<unsigned int>(std::clamp<int64_t>(width / 4 / kWarp * kWarp, kWarp, 512));
}

template <class T>
__device__ inline T warp_sum(T value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

// A lane keeps the sums whose index shares its bit `kStep` and hands the others over.
template <int kStep>
__device__ inline void halve_sums(float (&values)[kWarp]) {
  const bool upper = (threadIdx.x & kStep) != 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const float keep = upper ? values[i + kStep] : values[i], give = upper ? values[i] : values[i + kStep];
    values[i] = keep + __shfl_xor_sync(kAllLanes, give, kStep);
  }
  if constexpr (kStep > 1) halve_sums<kStep / 2>(values);
}

// Lane i returns the sum over the warp of values[i]: the bits of warp_sum(values[i]), in 31 shuffles for
// all 32.
__device__ inline float warp_sums(float (&values)[kWarp]) {
  halve_sums<kWarp / 2>(values);
  return values[0];
}

// Over a block of at most 1024 threads, whole warps; every thread gets the result.
template <class T, class Reduce>
__device__ inline T block_reduce(T value, T neutral, Reduce reduce) {
  __shared__ T partial[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = reduce(value);
  __syncthreads();  // an earlier reduction's readers are done
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  return reduce(lane < warps ? partial[lane] : neutral);
}

template <class T>
__device__ inline T block_sum(T value) {
  return block_reduce(value, T{0}, [](T v) { return warp_sum(v); });
}

__device__ inline float block_max(float value) {
  return block_reduce(value, -__builtin_huge_valf(), [](float v) { return warp_max(v); });
}

}  // namespace fathom
