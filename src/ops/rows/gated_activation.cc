#include "ops/rows/gated_activation.h"

#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/kernels/without_values.h"

namespace fathom {

void gated_activation_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out);
void gated_activation_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out);
// again: undefined, or of bf16 operands: becomes gated_activation() of them.
void gated_activation_gradient_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up,
                                      Tensor& again);
void gated_activation_gradient_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up,
                                      Tensor& again);

Tensor gated_activation(Context& ctx, const Tensor& gate, const Tensor& up, Activation activation) {
  const bool bf16 = gate.defined() && gate.dtype() == DType::kBF16 && ctx.device() == Device::kCuda;
  if (bf16) {
    require(gate.rank() == 2 && gate.dim(1) % 8 == 0 && gate.stride(0) % 8 == 0 && up.stride(0) % 8 == 0,
            "gated_activation: in bf16 gate and up must be (rows, a multiple of 8), got {}",
            to_string(gate.shape()));
  } else {
    expect_rows(gate, "gated_activation", "gate");
    expect_rows(up, "gated_activation", "up");
  }
  expect(up, gate.dtype(), gate.shape(), "gated_activation", "up");
  Tensor out = Tensor::empty(ctx, gate.dtype(), gate.shape()).counted_like(gate);
  on_device(ctx, [&](auto dev) { gated_activation_kernel(dev, gate, up, activation, out); });
  const auto await = bf16 ? std::make_shared<AwaitValues>() : nullptr;
  differentiate(ctx, {&gate, &up}, out, [=](Context& c, const Tensor& d) {
    Tensor d_gate = gradient_like(c, gate), d_up = gradient_like(c, up), again;
    if (await && !await->empty()) again = Tensor::empty(c, gate.dtype(), gate.shape()).counted_like(gate);
    on_device(c, [&](auto dev) {
      gated_activation_gradient_kernel(dev, gate, up, activation, d, d_gate, d_up, again);
    });
    accumulate(c, gate, d_gate);
    accumulate(c, up, d_up);
    if (again)
      for (const auto& waiting : *await) waiting(c, again);
  });
  if (out.gradient()) out.gradient()->await = await;
  return out;
}

}  // namespace fathom
