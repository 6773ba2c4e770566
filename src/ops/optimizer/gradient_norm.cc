#include "ops/optimizer/gradient_norm.h"

#include <bit>
#include <cmath>

#include "base/format.h"
#include "ops/optimizer/gradient_norm_kernel.h"

namespace fathom {

Tensor gradient_norm(Context& ctx, const Tensor& x) {
  if (!x.defined() || x.dtype() != DType::kF32 || !x.is_contiguous())
    fail("gradient_norm: x must be dense f32, got {} {}", name_of(x.dtype()), to_string(x.shape()));
  Tensor sums = Tensor::empty(ctx, DType::kF32, {(x.numel() + kNormBlock - 1) / kNormBlock, 2});
  Tensor out = Tensor::empty(ctx, DType::kI32, {2});
  on_device(ctx, [&](auto dev) { gradient_norm_kernel(dev, x, sums, out); });
  return out;
}

double norm_of(Scalar low, Scalar high) {
  return std::sqrt(std::bit_cast<double>(uint64_t{high.bits} << 32 | low.bits));
}

}  // namespace fathom
