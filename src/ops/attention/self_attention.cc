#include "ops/attention/self_attention.h"

#include "base/format.h"
#include "ops/attention/self_attention_kernel.h"
#include "ops/kernels/without_values.h"

namespace fathom {
namespace {

void check_rows(const Tensor& x, const char* name, const RowSet& rows, int64_t head_dim, DType type) {
  const bool lies_right =
      x.is_contiguous() || (type == DType::kBF16 && x.has_dense_rows() && x.stride(0) % 8 == 0);
  if (!x.defined() || x.dtype() != type || x.rank() != 3 || !lies_right ||
      (head_dim > 0 && x.dim(2) != head_dim) || (!rows.is_none() && x.dim(0) != rows.capacity())) {
    fail("self_attention: {} must be dense {} ({}, heads, {}), got {} {}", name, name_of(type),
         rows.capacity(), head_dim > 0 ? std::to_string(head_dim) : "head_dim", name_of(x.dtype()),
         to_string(x.shape()));
  }
}

void check(const Context& ctx, const SelfAttentionCall& call) {
  const int64_t dim = call.q.rank() == 3 ? call.q.dim(2) : 0;
  const bool bf16 = call.q.defined() && call.q.dtype() == DType::kBF16 && takes_bf16(ctx, dim) &&
                    call.params.precision == Precision::kBf16;
  const DType type = bf16 ? DType::kBF16 : DType::kF32;
  check_rows(call.q, "q", call.queries, 0, type);
  check_rows(call.k, "k", call.keys, dim, type);
  check_rows(call.v, "v", call.keys, dim, type);
  if (call.k.dim(1) < 1 || call.v.dim(1) != call.k.dim(1) || call.q.dim(1) % call.k.dim(1) != 0)
    fail("self_attention: {} heads cannot share {} heads of keys and {} of values", call.q.dim(1),
         call.k.dim(1), call.v.dim(1));
  if (dim < 8 || dim > kMaxHeadDim || dim % 8 != 0)
    fail("self_attention: head_dim must be a multiple of 8 up to {}, got {}", kMaxHeadDim, dim);
  if (!call.positions.defined() || call.positions.rank() != 1)
    fail("self_attention: positions must be i32 (rows), got {}", to_string(call.positions.shape()));
  for (const RowSet* rows : {&call.queries, &call.keys}) {
    if (rows->is_all() && rows->capacity() != call.positions.dim(0))
      fail("self_attention: positions must be i32 ({}), got {}", rows->capacity(),
           to_string(call.positions.shape()));
  }
  expect(call.positions, DType::kI32, call.positions.shape(), "self_attention", "positions");
  expect(call.sequence, DType::kI32, call.positions.shape(), "self_attention", "sequence");
  if (call.key_bias) expect(call.key_bias, DType::kF32, call.positions.shape(), "self_attention", "key_bias");
  if (!(call.params.scale > 0)) fail("self_attention: scale must be above 0, got {}", call.params.scale);
}

void gradient(Context& ctx, const SelfAttentionCall& call, const SelfAttentionKept& kept, const Tensor& d) {
  const auto wanted = [&](const Tensor& x) { return x.gradient() ? gradient_like(ctx, x) : Tensor(); };
  SelfAttentionGradients gradients{wanted(call.q), wanted(call.k), wanted(call.v), wanted(call.key_bias)};
  on_device(ctx, [&](auto dev) { self_attention_gradient_kernel(dev, ctx, call, kept, d, gradients); });
  accumulate(ctx, call.q, gradients.q);
  accumulate(ctx, call.k, gradients.k);
  accumulate(ctx, call.v, gradients.v);
  accumulate(ctx, call.key_bias, gradients.key_bias);
}

}  // namespace

bool takes_bf16(const Context& ctx, int64_t head_dim) {
  return ctx.device() == Device::kCuda && (head_dim == 64 || head_dim == 128);
}

Tensor self_attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_bias,
                      const RowSet& queries, const RowSet& keys, const Tensor& positions,
                      const Tensor& sequence, AttentionParams params) {
  SelfAttentionCall call{q, k, v, key_bias, queries, keys, positions, sequence, params};
  check(ctx, call);
  SelfAttentionKept kept;
  const bool keep = differentiable(ctx, {&q, &k, &v, &key_bias});
  Tensor out;
  on_device(ctx, [&](auto dev) { out = self_attention_kernel(dev, ctx, call, keep, kept); });
  if (kept.q) {
    call.q = without_values(q);
    call.k = without_values(k);
    call.v = without_values(v);
  }
  differentiate(ctx, {&q, &k, &v, &key_bias}, out,
                [=](Context& c, const Tensor& d) { gradient(c, call, kept, d); });
  return out;
}

}  // namespace fathom
