#include "ops/embed.h"

#include "base/format.h"

namespace fathom {

void embed_kernel(CpuBackend dev, const Tensor& ids, const Tensor& table, float scale, Tensor& out);
void embed_kernel(CudaBackend dev, const Tensor& ids, const Tensor& table, float scale, Tensor& out);

Tensor embed(Context& ctx, const Tensor& ids, const Tensor& table, float scale) {
  if (!ids.defined() || ids.dtype() != DType::kI32 || ids.rank() != 1) {
    fail("embed: ids must be i32 (rows), got {} {}", name_of(ids.dtype()), to_string(ids.shape()));
  }
  const bool numbers = table.dtype() != DType::kI32 && table.dtype() != DType::kU8;
  if (!table.defined() || !numbers || table.rank() != 2 || !table.is_contiguous()) {
    fail("embed: table must be dense (vocab, d) of a float or block type, got {} {}", name_of(table.dtype()),
         to_string(table.shape()));
  }
  Tensor out = Tensor::empty(ctx, DType::kF32, {ids.dim(0), table.dim(1)});
  on_device(ctx, [&](auto dev) { embed_kernel(dev, ids, table, scale, out); });
  return out;
}

}  // namespace fathom
