// C = alpha · op(A) · op(B) + beta · C: the products of training. Inference multiplies with linear(), whose
// rows do not depend on each other; here a sum's bits depend on the length of the sum too, but not on the
// number of threads.
#pragma once

#include "tensor/context.h"
#include "tensor/precision.h"

namespace fathom {

// Row-major. How the factors lie in memory: N as written, T transposed.
enum class GemmLayout : uint8_t {
  kNN,  // A (m, k), B (k, n)
  kNT,  // A (m, k), B (n, k)
  kTN,  // A (k, m), B (k, n)
};

struct GemmMatrix {
  const void* data = nullptr;
  int64_t stride = 0;  // elements from one row in memory to the next
  bool bf16 = false;   // or f32
};

struct GemmArgs {
  GemmLayout layout;
  Precision precision;
  int64_t m, n, k;  // k = 0: C = beta · C
  GemmMatrix a, b;
  float* c;  // (m, n); beta = 0 does not read it
  int64_t c_stride;
  float alpha = 1.0f, beta = 0.0f;
};

// Counts m · n · k multiply-adds.
void gemm(CpuBackend dev, Context& ctx, const GemmArgs& args);

// The same product in the calling thread, not counted: for those that share out work themselves. scratch:
// gemm_scratch_bytes of a shape at least as large in each dimension.
void gemm_in_thread(Isa isa, const GemmArgs& args, void* scratch);
int64_t gemm_scratch_bytes(Isa isa, Precision precision, int64_t m, int64_t n, int64_t k);

}  // namespace fathom
