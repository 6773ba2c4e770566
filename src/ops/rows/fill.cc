#include "ops/rows/fill.h"

#include "base/format.h"

namespace fathom {

void fill_kernel(CpuBackend dev, Tensor& out, float value);
void fill_kernel(CudaBackend dev, Tensor& out, float value);

void fill(Context& ctx, Tensor& out, float value) {
  if (!out.defined()) fail("fill: out must be dense f32, got nothing");
  if (out.dtype() != DType::kF32 || !out.is_contiguous())
    fail("fill: out must be dense f32, got {}{} {}", out.is_contiguous() ? "" : "strided ",
         name_of(out.dtype()), to_string(out.shape()));
  on_device(ctx, [&](auto dev) { fill_kernel(dev, out, value); });
}

Tensor scalar(Context& ctx, float value) {
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  fill(ctx, out, value);
  return out;
}

}  // namespace fathom
