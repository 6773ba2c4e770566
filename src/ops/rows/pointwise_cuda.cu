#include "ops/kernels/elementwise.cuh"
#include "ops/rows/pointwise.h"

namespace fathom {
namespace {

constexpr float kFloor = 1e-6f;

struct Sigmoid {
  __device__ float operator()(float x) const { return 1.0f / (1.0f + expf(-x)); }
};
struct Relu {
  __device__ float operator()(float x) const { return x <= 0 ? 0.0f : x; }
};
struct Silu {
  __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};
struct Square {
  __device__ float operator()(float x) const { return x * x; }
};
struct Abs {
  __device__ float operator()(float x) const { return fabsf(x); }
};
struct LogFloor {
  __device__ float operator()(float x) const { return logf(x < kFloor ? kFloor : x); }
};
struct Clamp01 {
  __device__ float operator()(float x) const { return x < 0 ? 0.0f : x > 1 ? 1.0f : x; }
};
struct Logit {
  __device__ float operator()(float x) const {
    const float p = x < kFloor ? kFloor : x > 1.0f - kFloor ? 1.0f - kFloor : x;
    return logf(p / (1.0f - p));
  }
};
struct Affine {
  float scale, shift;
  __device__ float operator()(float x) const { return x * scale + shift; }
};
struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Multiply {
  __device__ float operator()(float a, float b) const { return a * b; }
};

}  // namespace

void apply_kernel(CudaBackend dev, Unary function, const Tensor& x, Tensor& out) {
  switch (function) {
    case Unary::kSigmoid:
      return map_elements(dev, "apply", out, Sigmoid{}, x);
    case Unary::kRelu:
      return map_elements(dev, "apply", out, Relu{}, x);
    case Unary::kSilu:
      return map_elements(dev, "apply", out, Silu{}, x);
    case Unary::kSquare:
      return map_elements(dev, "apply", out, Square{}, x);
    case Unary::kAbs:
      return map_elements(dev, "apply", out, Abs{}, x);
    case Unary::kLogFloor:
      return map_elements(dev, "apply", out, LogFloor{}, x);
    case Unary::kClamp01:
      return map_elements(dev, "apply", out, Clamp01{}, x);
    case Unary::kLogit:
      return map_elements(dev, "apply", out, Logit{}, x);
  }
}

void affine_kernel(CudaBackend dev, const Tensor& x, float scale, float shift, Tensor& out) {
  map_elements(dev, "affine", out, Affine{scale, shift}, x);
}

void add_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  map_elements(dev, "add", out, Add{}, a, b);
}

void multiply_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  map_elements(dev, "multiply", out, Multiply{}, a, b);
}

}  // namespace fathom
