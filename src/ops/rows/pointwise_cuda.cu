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
// Derivatives: of the output y where pointwise.cc saves that, else of the input x.
struct SigmoidSlope {
  __device__ float operator()(float y) const { return y * (1.0f - y); }
};
struct ReluSlope {
  __device__ float operator()(float y) const { return y > 0 ? 1.0f : 0.0f; }
};
struct SquareSlope {
  __device__ float operator()(float x) const { return 2.0f * x; }
};
struct AbsSlope {
  __device__ float operator()(float x) const { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
};
struct LogFloorSlope {
  __device__ float operator()(float x) const { return x < kFloor ? 0.0f : 1.0f / x; }
};
struct Clamp01Slope {
  __device__ float operator()(float y) const { return y > 0 && y < 1 ? 1.0f : 0.0f; }
};
struct LogitSlope {
  __device__ float operator()(float x) const {
    return x < kFloor || x > 1.0f - kFloor ? 0.0f : 1.0f / (x * (1.0f - x));
  }
};
template <class Slope>
struct TimesSlope {
  __device__ float operator()(float saved, float d) const { return d * Slope{}(saved); }
};
struct SiluGradient {
  __device__ float operator()(float x, float d) const {
    const float s = Sigmoid{}(x);
    return d * s * (1.0f + x * (1.0f - s));
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

void apply_gradient_kernel(CudaBackend dev, Unary function, const Tensor& saved, const Tensor& d,
                           Tensor& dx) {
  const auto run = [&](auto gradient) { map_elements(dev, "the gradient of apply", dx, gradient, saved, d); };
  switch (function) {
    case Unary::kSigmoid:
      return run(TimesSlope<SigmoidSlope>{});
    case Unary::kRelu:
      return run(TimesSlope<ReluSlope>{});
    case Unary::kSilu:
      return run(SiluGradient{});
    case Unary::kSquare:
      return run(TimesSlope<SquareSlope>{});
    case Unary::kAbs:
      return run(TimesSlope<AbsSlope>{});
    case Unary::kLogFloor:
      return run(TimesSlope<LogFloorSlope>{});
    case Unary::kClamp01:
      return run(TimesSlope<Clamp01Slope>{});
    case Unary::kLogit:
      return run(TimesSlope<LogitSlope>{});
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
