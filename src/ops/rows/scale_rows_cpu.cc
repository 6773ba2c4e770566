#include "ops/kernels/row_access.h"
#include "ops/kernels/row_products.h"
#include "ops/rows/scale_rows.h"

namespace fathom {

void scale_rows_kernel(CpuBackend dev, const Tensor& x, const Tensor& gate, Tensor& out) {
  const FloatRows in(x);
  const bool whole = gate.rank() == 1;
  const int64_t step = whole ? 1 : gate.stride(0);
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float *from = in[r], *by = gate.data<float>() + r * step;
      float* to = out.data<float>() + r * in.width;
      if (whole) {
        for (int64_t i = 0; i < in.width; ++i) to[i] = from[i] * *by;
      } else {
        for (int64_t i = 0; i < in.width; ++i) to[i] = from[i] * by[i];
      }
    }
  });
}

void row_products_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const FloatRows left(a), right(b);
  const auto dot = row_kernels(dev.isa).dot;
  dev.pool.parallel_for(left.rows, row_grain(left.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) out.data<float>()[r] = dot(left[r], right[r], left.width);
  });
}

}  // namespace fathom
