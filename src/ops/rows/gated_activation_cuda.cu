#include "ops/kernels/elementwise.cuh"
#include "ops/rows/gated_activation.h"

namespace fathom {
namespace {

struct SiluProduct {
  __device__ float operator()(float g, float u) const { return g / (1.0f + expf(-g)) * u; }
};

// GELU's tanh form: g / 2 · (1 + tanh(√(2/π) (g + 0.044715 g³)))
struct GeluProduct {
  __device__ float operator()(float g, float u) const {
    const float inner = 0.797884561f * fmaf(g * g * g, 0.044715f, g);
    return 0.5f * g * (1.0f + tanhf(inner)) * u;
  }
};

}  // namespace

void gated_activation_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out) {
  const DeviceFloatRows g(gate), u(up);
  if (activation == Activation::kSilu) {
    map_rows(dev, "gated_activation", out.data<float>(), SiluProduct{}, g, u);
  } else {
    map_rows(dev, "gated_activation", out.data<float>(), GeluProduct{}, g, u);
  }
}

}  // namespace fathom
