#include <cuda_bf16.h>

#include "ops/kernels/elementwise.cuh"
#include "ops/rows/accumulate.h"

namespace fathom {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
  __device__ __nv_bfloat16 operator()(__nv_bfloat16 a, __nv_bfloat16 b) const {
    return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
  }
};

}  // namespace

// Rows that a compacted gradient does not have are not read: they hold anything.
void accumulate_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  if (out.dtype() == DType::kBF16) return map_elements<__nv_bfloat16>(dev, "accumulate", out, Sum{}, a, b);
  map_elements(dev, "accumulate", out, Sum{}, a, b);
}

}  // namespace fathom
