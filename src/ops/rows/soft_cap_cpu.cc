#include <algorithm>

#include "ops/kernels/row_access.h"
#include "ops/rows/soft_cap.h"

namespace fathom {

void soft_cap_kernel(CpuBackend dev, const Tensor& x, float cap, Tensor& out) {
  const FloatRows in(x);
  const auto cap_row = row_kernels(dev.isa).soft_cap;
  float* y = out.data<float>();
  // A row of logits is a whole vocabulary: rows are cut, at multiples of the vector width.
  constexpr int64_t kPiece = 8192;
  const int64_t pieces = (in.width + kPiece - 1) / kPiece;
  dev.pool.parallel_for(in.rows * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / pieces, at = i % pieces * kPiece;
      cap_row(in[row] + at, y + row * in.width + at, std::min(kPiece, in.width - at), cap);
    }
  });
}

// 1 − tanh²
void soft_cap_gradient_kernel(CpuBackend dev, const Tensor& capped, float cap, const Tensor& d, Tensor& dx) {
  const float *y = capped.data<float>(), *from = d.data<float>();
  float* to = dx.data<float>();
  dev.pool.parallel_for(present_elements(capped), kElementGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float t = y[i] / cap;
      to[i] = from[i] * (1.0f - t * t);
    }
  });
}

}  // namespace fathom
