#include "ops/kernels/row_access.h"
#include "ops/rows/divide.h"

namespace fathom {

void divide_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const float *over = a.data<float>(), *under = b.data<float>();
  float* y = out.data<float>();
  dev.pool.parallel_for(a.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = under[i] == 0 ? 0.0f : over[i] / under[i];
  });
}

}  // namespace fathom
