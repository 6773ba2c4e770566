#include "ops/kernels/elementwise.cuh"
#include "ops/rows/soft_cap.h"

namespace fathom {
namespace {

struct SoftCap {
  float cap;
  __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
};

// 1 − tanh²
struct SoftCapGradient {
  float cap;
  __device__ float operator()(float y, float d) const {
    const float t = y / cap;
    return d * (1.0f - t * t);
  }
};

}  // namespace

void soft_cap_kernel(CudaBackend dev, const Tensor& x, float cap, Tensor& out) {
  map_rows(dev, "soft_cap", out.data<float>(), SoftCap{cap}, DeviceFloatRows(x));
}

void soft_cap_gradient_kernel(CudaBackend dev, const Tensor& capped, float cap, const Tensor& d, Tensor& dx) {
  map_elements(dev, "the gradient of soft_cap", dx, SoftCapGradient{cap}, capped, d);
}

}  // namespace fathom
