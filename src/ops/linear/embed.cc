#include "ops/linear/embed.h"

#include "base/format.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/fill.h"

namespace fathom {

void embed_kernel(CpuBackend dev, const Tensor& ids, const Tensor& table, float scale, Tensor& out);
void embed_kernel(CudaBackend dev, const Tensor& ids, const Tensor& table, float scale, Tensor& out);
// Adds scale · d to the rows that were read, in row order.
void embed_gradient_kernel(CpuBackend dev, Context& ctx, const Tensor& ids, float scale, const Tensor& d,
                           Tensor& d_table);
void embed_gradient_kernel(CudaBackend dev, Context& ctx, const Tensor& ids, float scale, const Tensor& d,
                           Tensor& d_table);

namespace {

void embed_gradient(Context& ctx, const Tensor& ids, const Tensor& table, float scale, const Tensor& d) {
  Tensor sum = gradient_to_add_to(table);
  const bool there = sum.defined();
  if (there) {
    sum = sum.reshape(table.shape());
  } else {
    sum = Tensor::empty(ctx, DType::kF32, table.shape());
    fill(ctx, sum, 0.0f);
  }
  on_device(ctx, [&](auto dev) { embed_gradient_kernel(dev, ctx, ids, scale, d, sum); });
  if (!there) accumulate(ctx, table, sum);
}

}  // namespace

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
  differentiate(ctx, {&table}, out, [=, table = without_values(table)](Context& c, const Tensor& d) {
    embed_gradient(c, ids, table, scale, d);
  });
  return out;
}

}  // namespace fathom
