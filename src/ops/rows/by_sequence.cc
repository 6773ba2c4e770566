#include "ops/rows/by_sequence.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void mean_by_sequence_kernel(CpuBackend dev, const Tensor& x, const Tensor& sequence, const Tensor& weights,
                             Tensor& out);
void mean_by_sequence_kernel(CudaBackend dev, const Tensor& x, const Tensor& sequence, const Tensor& weights,
                             Tensor& out);
// shares: f32 (sequences), not initialised: 1 / Σ w of each sequence, 0 where that is 0.
void mean_by_sequence_gradient_kernel(CpuBackend dev, const Tensor& sequence, const Tensor& weights,
                                      const Tensor& d, Tensor& shares, Tensor& dx);
void mean_by_sequence_gradient_kernel(CudaBackend dev, const Tensor& sequence, const Tensor& weights,
                                      const Tensor& d, Tensor& shares, Tensor& dx);
void expand_by_sequence_kernel(CpuBackend dev, const Tensor& s, const Tensor& sequence, Tensor& out);
void expand_by_sequence_kernel(CudaBackend dev, const Tensor& s, const Tensor& sequence, Tensor& out);
// Σ d over each sequence's rows.
void expand_by_sequence_gradient_kernel(CpuBackend dev, const Tensor& sequence, const Tensor& d, Tensor& ds);
void expand_by_sequence_gradient_kernel(CudaBackend dev, const Tensor& sequence, const Tensor& d, Tensor& ds);

Tensor mean_by_sequence(Context& ctx, const Tensor& x, const Tensor& sequence, const Tensor& weights,
                        int64_t sequences) {
  expect_rows(x, "mean_by_sequence", "x");
  if (x.rank() != 2) fail("mean_by_sequence: x must be f32 (rows, d), got {}", to_string(x.shape()));
  expect(sequence, DType::kI32, {x.dim(0)}, "mean_by_sequence", "sequence");
  if (weights) expect(weights, DType::kF32, {x.dim(0)}, "mean_by_sequence", "weights");
  if (sequences < 0) fail("mean_by_sequence: sequences must not be negative, got {}", sequences);
  Tensor out = Tensor::empty(ctx, DType::kF32, {sequences, x.dim(1)});
  on_device(ctx, [&](auto dev) { mean_by_sequence_kernel(dev, x, sequence, weights, out); });
  differentiate(ctx, {&x}, out,
                [sequence, weights = detach(weights), x = without_values(x)](Context& c, const Tensor& d) {
                  Tensor dx = gradient_like(c, x), shares = Tensor::empty(c, DType::kF32, {d.dim(0)});
                  on_device(c, [&](auto dev) {
                    mean_by_sequence_gradient_kernel(dev, sequence, weights, d, shares, dx);
                  });
                  accumulate(c, x, dx);
                });
  return out;
}

Tensor expand_by_sequence(Context& ctx, const Tensor& s, const Tensor& sequence) {
  if (!s.defined() || s.dtype() != DType::kF32 || s.rank() != 1)
    fail("expand_by_sequence: s must be f32 (sequences), got {} {}", name_of(s.dtype()),
         to_string(s.shape()));
  if (!sequence.defined() || sequence.dtype() != DType::kI32 || sequence.rank() != 1)
    fail("expand_by_sequence: sequence must be i32 (rows), got {} {}", name_of(sequence.dtype()),
         to_string(sequence.shape()));
  Tensor out = Tensor::empty(ctx, DType::kF32, sequence.shape()).counted_like(sequence);
  on_device(ctx, [&](auto dev) { expand_by_sequence_kernel(dev, s, sequence, out); });
  differentiate(ctx, {&s}, out, [sequence, s = without_values(s)](Context& c, const Tensor& d) {
    Tensor ds = gradient_like(c, s);
    on_device(c, [&](auto dev) { expand_by_sequence_gradient_kernel(dev, sequence, d, ds); });
    accumulate(c, s, ds);
  });
  return out;
}

}  // namespace fathom
