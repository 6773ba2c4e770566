#include "ops/attention/append_kv.h"

#include "base/format.h"
#include "tensor/arena.h"
#include "tensor/tape.h"

namespace fathom {

void append_kv_kernel(CpuBackend dev, KvView& kv, KvPages& pages, const Tensor& k, const Tensor& v,
                      const RowSet& kept, const Tensor& positions, const Tensor& sequence,
                      const AppendExtras& extras, Tensor& slots);
void append_kv_kernel(CudaBackend dev, KvView& kv, KvPages& pages, const Tensor& k, const Tensor& v,
                      const RowSet& kept, const Tensor& positions, const Tensor& sequence,
                      const AppendExtras& extras, Tensor& slots);

namespace {

void check_rows(const Tensor& rows, const Tensor& pool, const RowSet& kept, const char* name) {
  if (!pool.defined() || pool.rank() != 3)
    fail("append_kv: the pool of {} must be (slots, kv_heads, head_dim)", name);
  const DType type = pool.dtype();
  if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16 && type != DType::kQ8_0) {
    fail("append_kv: the pool of {} must be f32, f16, bf16 or q8_0, got {}", name, name_of(type));
  }
  row_bytes(type, pool.dim(2));  // whole blocks per head
  expect(rows, DType::kF32, {kept.capacity(), pool.dim(1), pool.dim(2)}, "append_kv", name);
  if (!rows.is_contiguous()) fail("append_kv: {} must be dense", name);
}

}  // namespace

void append_kv(Context& ctx, KvView& kv, KvPages& pages, const Tensor& k, const Tensor& v, const RowSet& kept,
               const Tensor& positions, const Tensor& sequence, const AppendExtras& extras) {
  if (kept.is_none() && !extras.below) return;
  if (differentiable(ctx, {&k, &v}))
    fail("append_kv: a cache holds no gradients: train over fresh keys and values");
  if (!kept.is_none()) {
    check_rows(k, kv.k, kept, "k");
    check_rows(v, kv.v, kept, "v");
  }
  if (pages.page < 1) fail("append_kv: page must be at least 1, got {}", pages.page);
  if (kv.entries.rank() != 2) fail("append_kv: entries must be i32 (sequences, capacity)");
  const Shape lists = kv.entries.shape();
  expect(kv.entries, DType::kI32, lists, "append_kv", "entries");
  expect(kv.positions, DType::kI32, lists, "append_kv", "kv.positions");
  expect(kv.lengths, DType::kI32, {lists[0]}, "append_kv", "lengths");
  if (kv.bias.defined()) expect(kv.bias, DType::kF32, lists, "append_kv", "bias");
  if (pages.table.rank() != 2) fail("append_kv: pages.table must be i32 (sequences, pages)");
  expect(pages.table, DType::kI32, {lists[0], pages.table.dim(1)}, "append_kv", "pages.table");
  expect(pages.taken, DType::kI32, {lists[0]}, "append_kv", "pages.taken");
  if (positions.rank() != 1 || (kept.is_all() && positions.dim(0) != kept.capacity())) {
    fail("append_kv: positions must be i32 (rows), got {}", to_string(positions.shape()));
  }
  expect(positions, DType::kI32, positions.shape(), "append_kv", "positions");
  expect(sequence, DType::kI32, positions.shape(), "append_kv", "sequence");
  if (extras.bias) {
    if (!kv.bias) fail("append_kv: keys are biased, but the cache has no room for it");
    expect(extras.bias, DType::kF32, positions.shape(), "append_kv", "extras.bias");
  }
  if (extras.below && extras.present && ctx.device() == Device::kCuda)
    fail("append_kv: entries are shared by some of the rows on the CPU only, got tensors on a GPU");
  if (extras.below) expect(extras.below->entries, DType::kI32, lists, "append_kv", "below.entries");
  const ArenaScope scope(ctx);
  Tensor slots = Tensor::empty(ctx, DType::kI32, {kept.capacity()});
  on_device(ctx, [&](auto dev) {
    append_kv_kernel(dev, kv, pages, k, v, kept, positions, sequence, extras, slots);
  });
}

}  // namespace fathom
