// Each row of the output is a copy of some row, or zeros: gathering, merging and their gradients.
#pragma once

#include "ops/kernels/row_set_cuda.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {

inline constexpr unsigned int kCopyThreads = 128;

// x: along a row; y: rows beside each other, where a row is narrow.
inline dim3 copy_block(int64_t width) {
  unsigned int along = 1;
  while (along < width && along < kCopyThreads) along *= 2;
  return {along, kCopyThreads / along};
}

template <class Source>
__global__ void copy_rows_kernel(int64_t rows, const int32_t* count, int64_t width, Source source,
                                 float* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows || (count && row >= *count)) return;
  const float* from = source(row);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) out[row * width + i] = from ? from[i] : 0.0f;
}

// Row r of out (dense) becomes the one at source(r), zeros where that is null. Rows past the count of out are
// not written.
template <class Source>
void copy_rows(CudaBackend dev, const char* op, Tensor& out, Source source) {
  if (out.numel() == 0) return;
  const int64_t rows = out.dim(0), width = out.numel() / rows;
  const dim3 block = copy_block(width);
  copy_rows_kernel<<<blocks_for(rows, block.y), block, 0, dev.handle.stream>>>(rows, out.row_count(), width,
                                                                               source, out.data<float>());
  check_launch(op);
}

// The kept rows of `from`, then zeros.
struct KeptRowsOf {
  DeviceRows kept;
  const float* from;
  int64_t width;
  __device__ const float* operator()(int64_t i) const {
    return i < kept.count() ? from + kept[i] * width : nullptr;
  }
};

}  // namespace fathom
