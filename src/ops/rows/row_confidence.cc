#include "ops/rows/row_confidence.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"

namespace fathom {

void softmax_gap_kernel(CpuBackend dev, const Tensor& logits, Tensor& out);
void softmax_gap_kernel(CudaBackend dev, const Tensor& logits, Tensor& out);
void cosine_rows_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out);
void cosine_rows_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out);

Tensor softmax_gap(Context& ctx, const Tensor& logits) {
  expect_rows(logits, "softmax_gap", "logits");
  if (logits.rank() != 2 || logits.dim(1) < 1)
    fail("softmax_gap: logits must be f32 (rows, vocab), got {}", to_string(logits.shape()));
  Tensor out = Tensor::empty(ctx, DType::kF32, {logits.dim(0)}).counted_like(logits);
  on_device(ctx, [&](auto dev) { softmax_gap_kernel(dev, logits, out); });
  return out;
}

Tensor cosine_rows(Context& ctx, const Tensor& a, const Tensor& b) {
  expect_rows(a, "cosine_rows", "a");
  if (a.rank() != 2) fail("cosine_rows: a must be f32 (rows, d), got {}", to_string(a.shape()));
  expect_rows(b, "cosine_rows", "b");
  expect(b, DType::kF32, a.shape(), "cosine_rows", "b");
  Tensor out = Tensor::empty(ctx, DType::kF32, {a.dim(0)}).counted_like(a);
  on_device(ctx, [&](auto dev) { cosine_rows_kernel(dev, a, b, out); });
  return out;
}

}  // namespace fathom
