#include "ops/rows/reduce.h"

#include <array>
#include <vector>

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"
#include "ops/rows/select_rows.h"

namespace fathom {

void mean_columns_kernel(CpuBackend dev, const Tensor& x, Tensor& out);
void mean_columns_kernel(CudaBackend dev, const Tensor& x, Tensor& out);
void mean_columns_gradient_kernel(CpuBackend dev, const Tensor& d, Tensor& dx);
void mean_columns_gradient_kernel(CudaBackend dev, const Tensor& d, Tensor& dx);
// out: (1). total, mean: one f64, what the gradient needs: the sum of the weights, the mean.
void mean_rows_kernel(CpuBackend dev, const Tensor& x, const Tensor& weights, Tensor& total, Tensor& out);
void mean_rows_kernel(CudaBackend dev, const Tensor& x, const Tensor& weights, Tensor& total, Tensor& out);
void variance_rows_kernel(CpuBackend dev, const Tensor& x, Tensor& mean, Tensor& out);
void variance_rows_kernel(CudaBackend dev, const Tensor& x, Tensor& mean, Tensor& out);
void mean_rows_gradient_kernel(CpuBackend dev, const Tensor& weights, const Tensor& total, const Tensor& d,
                               Tensor& dx);
void mean_rows_gradient_kernel(CudaBackend dev, const Tensor& weights, const Tensor& total, const Tensor& d,
                               Tensor& dx);
void variance_rows_gradient_kernel(CpuBackend dev, const Tensor& x, const Tensor& mean, const Tensor& d,
                                   Tensor& dx);
void variance_rows_gradient_kernel(CudaBackend dev, const Tensor& x, const Tensor& mean, const Tensor& d,
                                   Tensor& dx);
// total: as mean_rows'.
void kept_share_kernel(CudaBackend dev, const RowSet& kept, int64_t rows, Tensor& total, Tensor& out);
void weighted_sum_kernel(CpuBackend dev, std::span<const Tensor> scalars, std::span<const float> weights,
                         Tensor& out);
void weighted_sum_kernel(CudaBackend dev, std::span<const Tensor> scalars, std::span<const float> weights,
                         Tensor& out);

namespace {

void expect_vector(const Tensor& x, const char* op, const char* name) {
  if (!x.defined()) fail("{}: {} must be f32 (rows), got nothing", op, name);
  if (x.dtype() != DType::kF32 || x.rank() != 1)
    fail("{}: {} must be f32 (rows), got {} {}", op, name, name_of(x.dtype()), to_string(x.shape()));
}

// Room for one f64, a type that tensors do not have, where the data lives.
Tensor room_for_double(Context& ctx) {
  return Tensor::empty(ctx, DType::kU8, {sizeof(double)});
}

}  // namespace

Tensor mean_columns(Context& ctx, const Tensor& x) {
  expect_rows(x, "mean_columns", "x");
  if (x.rank() != 2 || x.dim(1) < 1)
    fail("mean_columns: x must be f32 (rows, d) with d above 0, got {}", to_string(x.shape()));
  Tensor out = Tensor::empty(ctx, DType::kF32, {x.dim(0)}).counted_like(x);
  on_device(ctx, [&](auto dev) { mean_columns_kernel(dev, x, out); });
  differentiate(ctx, {&x}, out, [x = without_values(x)](Context& c, const Tensor& d) {
    Tensor dx = gradient_like(c, x);
    on_device(c, [&](auto dev) { mean_columns_gradient_kernel(dev, d, dx); });
    accumulate(c, x, dx);
  });
  return out;
}

Tensor mean_rows(Context& ctx, const Tensor& x, const Tensor& weights) {
  expect_vector(x, "mean_rows", "x");
  if (weights) expect(weights, DType::kF32, x.shape(), "mean_rows", "weights");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1}), total = room_for_double(ctx);
  on_device(ctx, [&](auto dev) { mean_rows_kernel(dev, x, weights, total, out); });
  differentiate(ctx, {&x}, out,
                [total, weights = detach(weights), x = without_values(x)](Context& c, const Tensor& d) {
                  Tensor dx = gradient_like(c, x);
                  on_device(c, [&](auto dev) { mean_rows_gradient_kernel(dev, weights, total, d, dx); });
                  accumulate(c, x, dx);
                });
  return out;
}

// On a GPU nothing but the count is read.
Tensor kept_share(Context& ctx, const RowSet& kept, const Tensor& p) {
  expect_vector(p, "kept_share", "p");
  if (kept.is_all() && kept.capacity() != p.dim(0))
    fail("kept_share: {} rows kept of {}", kept.capacity(), p.dim(0));
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::kCuda && !p.row_count()) {
      Tensor out = Tensor::empty(ctx, DType::kF32, {1}), total = room_for_double(ctx);
      kept_share_kernel(ctx.cuda(), kept, p.dim(0), total, out);
      differentiate(ctx, {&p}, out, [total, p = without_values(p)](Context& c, const Tensor& d) {
        Tensor dp = gradient_like(c, p);
        mean_rows_gradient_kernel(c.cuda(), {}, total, d, dp);
        accumulate(c, p, dp);
      });
      return out;
    }
  }
  const Tensor soft = mean_rows(ctx, p), ran = mean_rows(ctx, row_mask(ctx, kept, p.dim(0)));
  return weighted_sum(ctx, std::array{soft, ran, detach(soft)}, std::array{1.0f, 1.0f, -1.0f});
}

Tensor variance_rows(Context& ctx, const Tensor& x) {
  expect_vector(x, "variance_rows", "x");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1}), mean = room_for_double(ctx);
  on_device(ctx, [&](auto dev) { variance_rows_kernel(dev, x, mean, out); });
  differentiate(ctx, {&x}, out, [=](Context& c, const Tensor& d) {
    Tensor dx = gradient_like(c, x);
    on_device(c, [&](auto dev) { variance_rows_gradient_kernel(dev, x, mean, d, dx); });
    accumulate(c, x, dx);
  });
  return out;
}

Tensor weighted_sum(Context& ctx, std::span<const Tensor> scalars, std::span<const float> weights) {
  if (scalars.size() != weights.size())
    fail("weighted_sum: {} scalars, {} weights", scalars.size(), weights.size());
  for (const Tensor& scalar : scalars) expect(scalar, DType::kF32, {1}, "weighted_sum", "scalar");
  Tensor out = Tensor::empty(ctx, DType::kF32, {1});
  on_device(ctx, [&](auto dev) { weighted_sum_kernel(dev, scalars, weights, out); });
  std::vector<Tensor> inputs;
  std::vector<float> shares;
  for (size_t i = 0; i < scalars.size(); ++i) {
    if (!scalars[i].gradient()) continue;
    inputs.push_back(without_values(scalars[i]));
    shares.push_back(weights[i]);
  }
  if (inputs.empty()) return out;
  differentiate(ctx, {&inputs[0]}, out, [inputs, shares](Context& c, const Tensor& d) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensor dx = gradient_like(c, inputs[i]);
      on_device(c,
                [&](auto dev) { weighted_sum_kernel(dev, std::span(&d, 1), std::span(&shares[i], 1), dx); });
      accumulate(c, inputs[i], dx);
    }
  });
  return out;
}

}  // namespace fathom
