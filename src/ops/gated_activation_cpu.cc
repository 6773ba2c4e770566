#include "ops/gated_activation.h"
#include "ops/row_access.h"

namespace fathom {

void gated_activation_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out) {
  const FloatRows g(gate), u(up);
  const RowKernels& kernels = row_kernels(dev.isa);
  const auto product = activation == Activation::kSilu ? kernels.silu_product : kernels.gelu_product;
  float* y = out.data<float>();
  dev.pool.parallel_for(g.rows, row_grain(g.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) product(g[r], u[r], y + r * g.width, g.width);
  });
}

void gated_activation_gradient_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up) {
  const FloatRows g(gate), u(up), from(d);
  const RowKernels& kernels = row_kernels(dev.isa);
  const auto gradient =
      activation == Activation::kSilu ? kernels.silu_product_gradient : kernels.gelu_product_gradient;
  dev.pool.parallel_for(g.rows, row_grain(g.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * g.width;
      gradient(g[r], u[r], from[r], d_gate.data<float>() + at, d_up.data<float>() + at, g.width);
    }
  });
}

}  // namespace fathom
