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

// The gradients of gate and up. silu(g) = g σ, silu'(g) = σ (1 + g (1 − σ))
struct SiluProductGradient {
  __device__ float2 operator()(float g, float u, float d) const {
    const float s = 1.0f / (1.0f + expf(-g));
    return {d * u * (s * fmaf(g, 1.0f - s, 1.0f)), d * (g * s)};
  }
};

// With t = tanh(inner): ½ (1 + t) + ½ g (1 − t²) inner', where 1 − t² is 0 long before |g| = 16.
struct GeluProductGradient {
  __device__ float2 operator()(float g, float u, float d) const {
    const float c = fminf(fmaxf(g, -16.0f), 16.0f), square = c * c;
    const float t = tanhf(0.797884561f * fmaf(square * c, 0.044715f, c)), high = 0.5f * (1.0f + t);
    const float steep = 0.5f * c * ((1.0f - t * t) * (0.797884561f * fmaf(square, 0.134145f, 1.0f)));
    return {d * u * (high + steep), d * (g * high)};
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

void gated_activation_gradient_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up) {
  const auto run = [&](auto gradient) {
    map_rows_to_two(dev, "the gradient of gated_activation", d_gate.data<float>(), d_up.data<float>(),
                    gradient, DeviceFloatRows(gate), DeviceFloatRows(up), DeviceFloatRows(d));
  };
  if (activation == Activation::kSilu) {
    run(SiluProductGradient{});
  } else {
    run(GeluProductGradient{});
  }
}

}  // namespace fathom
