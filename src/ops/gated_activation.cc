#include "ops/gated_activation.h"

#include "ops/row_access.h"

namespace fathom {

void gated_activation_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out);
void gated_activation_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out);

Tensor gated_activation(Context& ctx, const Tensor& gate, const Tensor& up, Activation activation) {
  expect_rows(gate, "gated_activation", "gate");
  expect_rows(up, "gated_activation", "up");
  expect(up, DType::kF32, gate.shape(), "gated_activation", "up");
  Tensor out = Tensor::empty(ctx, DType::kF32, gate.shape()).counted_by(gate.row_count());
  on_device(ctx, [&](auto dev) { gated_activation_kernel(dev, gate, up, activation, out); });
  return out;
}

}  // namespace fathom
