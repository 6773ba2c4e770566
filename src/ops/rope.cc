#include "ops/rope.h"

#include "base/format.h"

namespace fathom {

void rope_kernel(CpuBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params, Tensor& out);
void rope_kernel(CudaBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params, Tensor& out);

Tensor rope(Context& ctx, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
            RopeParams params) {
  if (!x.defined() || x.dtype() != DType::kF32 || x.rank() != 3 || !x.is_contiguous() || x.dim(2) % 2 != 0) {
    fail("rope: x must be dense f32 (rows, heads, head_dim) with an even head_dim, got {} {}",
         name_of(x.dtype()), to_string(x.shape()));
  }
  expect(positions, DType::kI32, {x.dim(0)}, "rope", "positions");
  expect(inverse_frequency, DType::kF32, {x.dim(2) / 2}, "rope", "inverse_frequency");
  if (x.dim(2) > kMaxRopeDim) fail("rope: head_dim must be at most {}, got {}", kMaxRopeDim, x.dim(2));
  Tensor out = Tensor::empty(ctx, DType::kF32, x.shape()).counted_by(x.row_count());
  on_device(ctx, [&](auto dev) { rope_kernel(dev, x, positions, inverse_frequency, params, out); });
  return out;
}

}  // namespace fathom
