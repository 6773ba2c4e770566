// A warp for a row, its elements in fours. A warp goes on to further rows (filling_blocks).
#pragma once

#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {

inline constexpr int kRowWarps = 8, kRowThreads = kRowWarps * kWarp;
inline constexpr int kRowStep = 4 * kWarp;  // elements that a warp takes at once

// No more blocks than fill any GPU, for kernels whose threads go on to what is left: most rows of a compacted
// tensor may not be there, and blocks that find none take time, too.
inline unsigned int filling_blocks(int64_t count, int64_t per_block) {
  return std::min(blocks_for(count, per_block), 4096u);
}

inline unsigned int row_blocks(int64_t rows) {
  return filling_blocks(rows, kRowWarps);
}

__device__ inline int own_lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ inline int own_warp() {
  return static_cast<int>(threadIdx.x) / kWarp;
}
__device__ inline int64_t first_row() {
  return static_cast<int64_t>(blockIdx.x) * kRowWarps + own_warp();
}
__device__ inline int64_t next_row() {
  return static_cast<int64_t>(gridDim.x) * kRowWarps;
}

__device__ inline float4 load_four(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ inline void store_four(float* to, float4 x) {
  *reinterpret_cast<float4*>(to) = x;
}
__device__ inline float4 sum_of(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}
// sum + the product of fours.
__device__ inline float add_products(float4 a, float4 b, float sum) {
  return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

// The rows of x that are kept; where all are, those that are there.
inline DeviceRows rows_of(const Tensor& x, const RowSet& kept) {
  DeviceRows rows(kept);
  if (kept.is_all()) rows.count_ptr = x.row_count();
  return rows;
}

// Whether rows begin where four elements can be read and written together.
inline bool in_fours(const Tensor& x) {
  const auto bytes = static_cast<uintptr_t>(row_bytes(x.dtype(), 4));
  return x.dim(-1) % 4 == 0 && (x.rank() < 2 || x.stride(0) % 4 == 0) &&
         reinterpret_cast<uintptr_t>(x.raw()) % bytes == 0;
}

}  // namespace fathom
