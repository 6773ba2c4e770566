#include "ops/optimizer/adafactor.h"

#include "base/format.h"
#include "ops/optimizer/adafactor_kernel.h"
#include "tensor/arena.h"

namespace fathom {

int64_t adafactor_moments(const Shape& shape) {
  if (shape.rank() < 2) return shape.numel();
  return shape.numel() / shape.last() + shape.last();
}

void adafactor(Context& ctx, Tensor& value, const Tensor& gradient, Tensor& moments, Tensor& mean,
               const AdafactorParams& params) {
  expect(value, DType::kF32, value.shape(), "adafactor", "value");
  expect(gradient, DType::kF32, value.shape(), "adafactor", "gradient");
  require(value.is_contiguous() && gradient.is_contiguous(), "adafactor: value and gradient must be dense");
  if (value.numel() == 0) return;
  expect(moments, DType::kF32, {adafactor_moments(value.shape())}, "adafactor", "moments");
  if (params.beta1 > 0) expect(mean, DType::kF32, {value.numel()}, "adafactor", "mean");
  const ArenaScope scope(ctx);
  const bool factored = value.rank() >= 2;
  const int64_t columns = factored ? value.shape().last() : value.numel(), rows = value.numel() / columns;
  AdafactorCall call{value,
                     gradient,
                     moments,
                     params.beta1 > 0 ? mean : Tensor(),
                     Tensor::empty(ctx, DType::kF32, {2 * adafactor_scratch(rows, columns)}),
                     rows,
                     columns,
                     factored,
                     params};
  on_device(ctx, [&](auto dev) { adafactor_kernel(dev, call); });
}

}  // namespace fathom
