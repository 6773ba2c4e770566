#include "ops/rows/concatenate.h"

#include "base/format.h"

namespace fathom {

void assign_kernel(CpuBackend dev, const Tensor& from, Tensor& to);
void assign_kernel(CudaBackend dev, const Tensor& from, Tensor& to);

Tensor concatenate(Context& ctx, std::span<const Tensor> parts) {
  int64_t rows = 0;
  for (const Tensor& part : parts) {
    if (!part.defined() || part.dtype() != DType::kF32 || part.rank() != 1 || part.row_count())
      fail("concatenate: parts must be f32 (rows), all of them there, got {} {}", name_of(part.dtype()),
           to_string(part.shape()));
    rows += part.dim(0);
  }
  Tensor out = Tensor::empty(ctx, DType::kF32, {rows});
  int64_t begin = 0;
  for (const Tensor& part : parts) {
    Tensor place = out.rows(begin, part.dim(0));
    on_device(ctx, [&](auto dev) { assign_kernel(dev, part, place); });
    begin += part.dim(0);
  }
  return out;
}

}  // namespace fathom
