#include "ops/rows/noise.h"

#include "base/format.h"

namespace fathom {

void uniform_noise_kernel(CpuBackend dev, uint64_t seed, uint32_t a, uint32_t b, const Tensor& keys,
                          const Tensor& positions, Tensor& out);
void uniform_noise_kernel(CudaBackend dev, uint64_t seed, uint32_t a, uint32_t b, const Tensor& keys,
                          const Tensor& positions, Tensor& out);

Tensor uniform_noise(Context& ctx, uint64_t seed, uint32_t a, uint32_t b, const Tensor& keys,
                     const Tensor& positions) {
  if (!keys.defined() || keys.dtype() != DType::kI32 || keys.rank() != 1)
    fail("uniform_noise: keys must be i32 (rows), got {} {}", name_of(keys.dtype()), to_string(keys.shape()));
  expect(positions, DType::kI32, keys.shape(), "uniform_noise", "positions");
  Tensor out = Tensor::empty(ctx, DType::kF32, keys.shape()).counted_like(keys);
  on_device(ctx, [&](auto dev) { uniform_noise_kernel(dev, seed, a, b, keys, positions, out); });
  return out;
}

}  // namespace fathom
