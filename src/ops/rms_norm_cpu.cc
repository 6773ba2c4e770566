#include "ops/rms_norm.h"
#include "ops/row_access.h"

namespace fathom {

void rms_norm_kernel(CpuBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out) {
  const FloatRows in(x);
  const auto norm = row_kernels(dev.isa).rms_norm;
  const float* w = weight.data<float>();
  float* y = out.data<float>();
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      norm(in[r], w, y + r * in.width, in.width, params.eps, params.weight_offset);
  });
}

}  // namespace fathom
