// What the two ways to multiply at inference share: linear_cuda.cu takes every weight format, and
// linear_mma_cuda.cu bf16 on tensor cores.
#pragma once

#include "ops/linear/linear_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {

struct LinearProduct {
  const uint8_t* weight;
  const float* bias;  // null: none
  float* y;           // (rows, out)
  int out;
};

// Products with the same rows and of one format; blockIdx.z is the index.
struct LinearGroup {
  const float* x;
  int64_t rows, x_step;
  const int32_t* count;  // rows that are there; null: all
  int in;
  int64_t weight_bytes;  // of a row
  Work* work;            // where compacted rows are counted; null: the host has counted them
  LinearProduct product[kMaxLinearGroup];
};

// The widest product of the group.
inline int widest(const LinearGroup& group, int products) {
  int out = 0;
  for (int i = 0; i < products; ++i) out = group.product[i].out > out ? group.product[i].out : out;
  return out;
}

// Whether multiply_bf16() takes a group. Rows do not matter: a row's bits do not depend on how many there
// are.
bool takes_tensor_cores(DType dtype, const LinearGroup& group, int products);
void multiply_bf16(CudaBackend dev, const LinearGroup& group, int products);

#if defined(__CUDACC__)
__device__ inline int64_t rows_of(const LinearGroup& group) {
  return group.count ? *group.count : group.rows;
}

// By the first thread of a product.
__device__ inline void count_product(const LinearGroup& group, const LinearProduct& p, int64_t rows) {
  if (!group.work || rows == 0 || blockIdx.x != 0 || blockIdx.y != 0 || threadIdx.x != 0) return;
  count_work(group.work, {.madds = static_cast<uint64_t>(rows * group.in * p.out),
                          .weight_bytes = static_cast<uint64_t>(p.out * group.weight_bytes)});
}

__device__ inline void store_output(const LinearProduct& p, int64_t rows, int64_t row, int column,
                                    float sum) {
  if (row < rows && column < p.out) p.y[row * p.out + column] = p.bias ? sum + p.bias[column] : sum;
}
#endif

}  // namespace fathom
