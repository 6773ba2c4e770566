#include "ops/kernels/elementwise.cuh"
#include "ops/rows/soft_cap.h"

namespace fathom {
namespace {

struct SoftCap {
  float cap;
  __device__ float operator()(float x) const { return cap * tanhf(x / cap); }
};

}  // namespace

void soft_cap_kernel(CudaBackend dev, const Tensor& x, float cap, Tensor& out) {
  map_rows(dev, "soft_cap", out.data<float>(), SoftCap{cap}, DeviceFloatRows(x));
}

}  // namespace fathom
