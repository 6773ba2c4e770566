#include "ops/rows/quantile.h"

#include "base/format.h"

namespace fathom {

void quantile_kernel(CpuBackend dev, Context& ctx, const Tensor& scores, float q, const Tensor& valid,
                     IfEqual if_equal, Tensor& out);
void quantile_kernel(CudaBackend dev, Context& ctx, const Tensor& scores, float q, const Tensor& valid,
                     IfEqual if_equal, Tensor& out);
void weighted_quantile_kernel(CpuBackend dev, Context& ctx, const Tensor& scores, const Tensor& weights,
                              std::span<const float> shares, Tensor& out);
void weighted_quantile_kernel(CudaBackend dev, Context& ctx, const Tensor& scores, const Tensor& weights,
                              std::span<const float> shares, Tensor& out);
void top_share_kernel(CpuBackend dev, Context& ctx, const Tensor& scores, const Tensor& sequence, float share,
                      Tensor& out);
void top_share_kernel(CudaBackend dev, Context& ctx, const Tensor& scores, const Tensor& sequence,
                      float share, Tensor& out);

namespace {

void check_operands(const Tensor& scores, float share, const char* op, const char* name) {
  if (!scores.defined() || scores.dtype() != DType::kF32 || scores.rank() != 1)
    fail("{}: scores must be f32 (rows), got {} {}", op, name_of(scores.dtype()), to_string(scores.shape()));
  if (!(share >= 0 && share <= 1)) fail("{}: {} must be in [0, 1], got {}", op, name, share);
}

}  // namespace

Tensor quantile(Context& ctx, const Tensor& scores, float q, const Tensor& valid, IfEqual if_equal) {
  check_operands(scores, q, "quantile", "q");
  if (valid) expect(valid, DType::kF32, scores.shape(), "quantile", "valid");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  on_device(ctx, [&](auto dev) { quantile_kernel(dev, ctx, scores, q, valid, if_equal, out); });
  return out;
}

Tensor weighted_quantile(Context& ctx, const Tensor& scores, const Tensor& weights,
                         std::span<const float> shares) {
  for (const float share : shares) check_operands(scores, share, "weighted_quantile", "share");
  expect(weights, DType::kF32, scores.shape(), "weighted_quantile", "weights");
  Tensor out = Tensor::empty(ctx, DType::kF32, {std::ssize(shares)});
  on_device(ctx, [&](auto dev) { weighted_quantile_kernel(dev, ctx, scores, weights, shares, out); });
  return out;
}

Tensor top_share_by_sequence(Context& ctx, const Tensor& scores, const Tensor& sequence, float share) {
  check_operands(scores, share, "top_share_by_sequence", "share");
  expect(sequence, DType::kI32, scores.shape(), "top_share_by_sequence", "sequence");
  Tensor out = Tensor::empty(ctx, DType::kF32, scores.shape()).counted_like(scores);
  on_device(ctx, [&](auto dev) { top_share_kernel(dev, ctx, scores, sequence, share, out); });
  return out;
}

}  // namespace fathom
