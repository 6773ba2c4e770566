#include "ops/rows/gated_activation.h"

#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void gated_activation_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out);
void gated_activation_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out);
void gated_activation_gradient_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up);
void gated_activation_gradient_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up);

Tensor gated_activation(Context& ctx, const Tensor& gate, const Tensor& up, Activation activation) {
  expect_rows(gate, "gated_activation", "gate");
  expect_rows(up, "gated_activation", "up");
  expect(up, DType::kF32, gate.shape(), "gated_activation", "up");
  Tensor out = Tensor::empty(ctx, DType::kF32, gate.shape()).counted_like(gate);
  on_device(ctx, [&](auto dev) { gated_activation_kernel(dev, gate, up, activation, out); });
  differentiate(ctx, {&gate, &up}, out, [=](Context& c, const Tensor& d) {
    Tensor d_gate = gradient_like(c, gate), d_up = gradient_like(c, up);
    on_device(
        c, [&](auto dev) { gated_activation_gradient_kernel(dev, gate, up, activation, d, d_gate, d_up); });
    accumulate(c, gate, d_gate);
    accumulate(c, up, d_up);
  });
  return out;
}

}  // namespace fathom
