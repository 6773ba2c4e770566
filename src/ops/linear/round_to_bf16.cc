#include "ops/linear/round_to_bf16.h"

#include "base/format.h"
#include "ops/linear/linear_kernel.h"

namespace fathom {

void round_to_bf16(Context& ctx, const Tensor& x, Tensor& out) {
  if (!x.defined() || x.dtype() != DType::kF32 || x.rank() != 2)
    fail("round_to_bf16: x must be f32 (rows, width), got {} {}", name_of(x.dtype()), to_string(x.shape()));
  expect(out, DType::kBF16, x.shape(), "round_to_bf16", "out");
  require(out.is_contiguous(), "round_to_bf16: out must be dense");
  on_device(ctx, [&](auto dev) { round_rows_kernel(dev, x, out); });
}

}  // namespace fathom
