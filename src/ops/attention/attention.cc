#include "ops/attention/attention.h"

#include "base/format.h"

namespace fathom {

void attention_kernel(CpuBackend dev, Context& ctx, const Tensor& q, const KvView& kv, const RowSet& queries,
                      const Tensor& positions, const Tensor& sequence, AttentionParams params, Tensor& out);
void attention_kernel(CudaBackend dev, Context& ctx, const Tensor& q, const KvView& kv, const RowSet& queries,
                      const Tensor& positions, const Tensor& sequence, AttentionParams params, Tensor& out);

namespace {

void check_pool(const Tensor& pool, int64_t head_dim, const char* name) {
  const DType type = pool.dtype();
  const bool known =
      type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kQ8_0;
  if (!pool.defined() || pool.rank() != 3 || pool.dim(2) != head_dim || !known) {
    fail("attention: {} must be f32, f16, bf16 or q8_0 (slots, kv_heads, {}), got {} {}", name, head_dim,
         name_of(type), to_string(pool.shape()));
  }
  row_bytes(type, head_dim);  // a head is whole blocks
}

void check_view(const KvView& kv) {
  if (kv.entries.rank() != 2) fail("attention: entries must be i32 (sequences, capacity)");
  const Shape lists = kv.entries.shape();
  expect(kv.entries, DType::kI32, lists, "attention", "entries");
  expect(kv.positions, DType::kI32, lists, "attention", "kv.positions");
  expect(kv.lengths, DType::kI32, {lists[0]}, "attention", "lengths");
  if (kv.bias.defined()) expect(kv.bias, DType::kF32, lists, "attention", "bias");
}

void check_queries(const Tensor& q, const KvView& kv, const RowSet& queries, const Tensor& positions,
                   const Tensor& sequence) {
  if (!q.defined() || q.dtype() != DType::kF32 || q.rank() != 3 || !q.is_contiguous()) {
    fail("attention: q must be dense f32 (rows, heads, head_dim), got {} {}", name_of(q.dtype()),
         to_string(q.shape()));
  }
  const int64_t capacity = queries.is_none() ? q.dim(0) : queries.capacity();
  if (q.dim(0) != capacity) fail("attention: q must have {} rows, got {}", capacity, q.dim(0));
  if (q.dim(2) < 8 || q.dim(2) > kMaxHeadDim || q.dim(2) % 8 != 0) {
    fail("attention: head_dim must be a multiple of 8 up to {}, got {}", kMaxHeadDim, q.dim(2));
  }
  check_pool(kv.k, q.dim(2), "k");
  check_pool(kv.v, q.dim(2), "v");
  if (kv.k.dim(1) < 1 || kv.v.dim(1) != kv.k.dim(1) || q.dim(1) % kv.k.dim(1) != 0) {
    fail("attention: {} heads cannot share {} heads of keys and {} of values", q.dim(1), kv.k.dim(1),
         kv.v.dim(1));
  }
  if (positions.rank() != 1 || (queries.is_all() && positions.dim(0) != capacity)) {
    fail("attention: positions must be i32 (rows), got {}", to_string(positions.shape()));
  }
  expect(positions, DType::kI32, positions.shape(), "attention", "positions");
  expect(sequence, DType::kI32, positions.shape(), "attention", "sequence");
}

}  // namespace

Tensor attention(Context& ctx, const Tensor& q, const KvView& kv, const RowSet& queries,
                 const Tensor& positions, const Tensor& sequence, AttentionParams params) {
  check_view(kv);
  check_queries(q, kv, queries, positions, sequence);
  if (!(params.scale > 0)) fail("attention: scale must be above 0, got {}", params.scale);
  Tensor out = Tensor::empty(ctx, DType::kF32, {q.dim(0), q.dim(1) * q.dim(2)}).counted_like(q);
  on_device(ctx,
            [&](auto dev) { attention_kernel(dev, ctx, q, kv, queries, positions, sequence, params, out); });
  return out;
}

}  // namespace fathom
