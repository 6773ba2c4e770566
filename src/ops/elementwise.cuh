// out[i] = fn(inputs[i]…) over rows that may be strided.
#pragma once

#include "ops/row_access.h"
#include "tensor/cuda_util.cuh"

namespace fathom {

inline constexpr int kMapThreads = 256;

// A block per kMapThreads elements of a row.
template <class Fn, class... Rows>
__global__ void map_rows_kernel(int64_t width, unsigned int pieces, Fn fn, float* out, Rows... in) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t i = static_cast<int64_t>(blockIdx.x % pieces) * kMapThreads + threadIdx.x;
  if (i < width) out[row * width + i] = fn(in.data[row * in.step + i]...);
}

template <class Fn, class... Rows>
void map_rows(CudaBackend dev, const char* op, float* out, Fn fn, const FloatRows& first,
              const Rows&... more) {
  if (first.rows == 0 || first.width == 0) return;
  const unsigned int pieces = blocks_for(first.width, kMapThreads);
  map_rows_kernel<<<static_cast<unsigned int>(first.rows) * pieces, kMapThreads, 0, dev.handle.stream>>>(
      first.width, pieces, fn, out, first, more...);
  check_launch(op);
}

}  // namespace fathom
