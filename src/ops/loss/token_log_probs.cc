#include "ops/loss/token_log_probs.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"

namespace fathom {

void token_log_probs_kernel(CpuBackend dev, const Tensor& logits, const Tensor& targets, Tensor& out);
void token_log_probs_kernel(CudaBackend dev, const Tensor& logits, const Tensor& targets, Tensor& out);

Tensor token_log_probs(Context& ctx, const Tensor& logits, const Tensor& targets) {
  expect_rows(logits, "token_log_probs", "logits");
  if (logits.rank() != 2 || logits.dim(1) < 1) {
    fail("token_log_probs: logits must be f32 (rows, vocab), got {}", to_string(logits.shape()));
  }
  expect(targets, DType::kI32, {logits.dim(0)}, "token_log_probs", "targets");
  Tensor out = Tensor::empty(ctx, DType::kF32, {logits.dim(0)}).counted_like(logits);
  on_device(ctx, [&](auto dev) { token_log_probs_kernel(dev, logits, targets, out); });
  return out;
}

}  // namespace fathom
