// The products of training on a GPU: gemm() of ops/linear/gemm.h, by cuBLASLt.
#pragma once

#include "ops/linear/gemm.h"

namespace fathom {

struct CudaGemmArgs {
  GemmLayout layout;
  int64_t m, n, k;  // k = 0: C = beta · C
  GemmMatrix a, b;  // both f32, multiplied in f32 (no TF32), or both bf16; sums in f32
  void* c;          // (m, n); beta = 0 does not read it
  int64_t c_stride;
  bool c_bf16 = false;  // or f32
  float alpha = 1.0f, beta = 0.0f;
  const void* plus = nullptr;  // what beta multiplies, with C's type and stride; null: C
};

// Row-major, as gemm(). The same operands give the same bits: where a sum is split, its parts are added in a
// fixed order. Not counted: the rows may be more than those that are there (bound()).
void cuda_gemm(CudaBackend dev, const CudaGemmArgs& args);

}  // namespace fathom
