#include <algorithm>

#include "ops/kernels/row_access.h"
#include "ops/rows/gated_activation.h"

namespace fathom {

namespace {

constexpr int64_t kGatedPiece = 512;          // columns
constexpr int64_t kGatedWorthThreads = 2048;  // elements; a row of a small model wakes nobody

}  // namespace

void gated_activation_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out) {
  const FloatRows g(gate), u(up);
  const RowKernels& kernels = row_kernels(dev.isa);
  const auto product = activation == Activation::kSilu ? kernels.silu_product : kernels.gelu_product;
  float* y = out.data<float>();
  const int64_t each = (g.width + kGatedPiece - 1) / kGatedPiece, pieces = g.rows * each;
  const int64_t grain = g.rows * g.width < kGatedWorthThreads ? pieces : 1;
  dev.pool.parallel_for(pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / each, c = i % each * kGatedPiece;
      product(g[r] + c, u[r] + c, y + r * g.width + c, std::min(kGatedPiece, g.width - c));
    }
  });
}

void gated_activation_gradient_kernel(CpuBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up,
                                      Tensor&) {
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
