#include <algorithm>
#include <cmath>

#include "ops/kernels/row_access.h"
#include "ops/rows/pointwise.h"

namespace fathom {
namespace {

constexpr float kFloor = 1e-6f;

// body(begin, end) over the elements that are there.
template <class Fn>
void over_elements(CpuBackend dev, const Tensor& x, Fn body) {
  dev.pool.parallel_for(present_elements(x), kElementGrain, body);
}

template <class Fn>
void map(CpuBackend dev, const Tensor& x, Tensor& out, Fn fn) {
  const float* from = x.data<float>();
  float* to = out.data<float>();
  over_elements(dev, x, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = fn(from[i]);
  });
}

// dx = d · slope(saved)
template <class Fn>
void map_slope(CpuBackend dev, const Tensor& saved, const Tensor& d, Tensor& dx, Fn slope) {
  const float *at = saved.data<float>(), *from = d.data<float>();
  float* to = dx.data<float>();
  over_elements(dev, saved, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = from[i] * slope(at[i]);
  });
}

void sigmoid(CpuBackend dev, const Tensor& x, Tensor& out) {
  const auto row = row_kernels(dev.isa).sigmoid;
  over_elements(dev, x, [&](int64_t begin, int64_t end) {
    row(x.data<float>() + begin, out.data<float>() + begin, end - begin);
  });
}

// x σ(x)
void silu(CpuBackend dev, const Tensor& x, Tensor& out) {
  const auto row = row_kernels(dev.isa).sigmoid;
  const float* from = x.data<float>();
  float* to = out.data<float>();
  over_elements(dev, x, [&](int64_t begin, int64_t end) {
    row(from + begin, to + begin, end - begin);
    for (int64_t i = begin; i < end; ++i) to[i] *= from[i];
  });
}

void silu_gradient(CpuBackend dev, const Tensor& x, const Tensor& d, Tensor& dx) {
  const auto row = row_kernels(dev.isa).sigmoid;
  const float *at = x.data<float>(), *from = d.data<float>();
  float* to = dx.data<float>();
  over_elements(dev, x, [&](int64_t begin, int64_t end) {
    row(at + begin, to + begin, end - begin);
    for (int64_t i = begin; i < end; ++i) to[i] = from[i] * to[i] * (1.0f + at[i] * (1.0f - to[i]));
  });
}

}  // namespace

void apply_kernel(CpuBackend dev, Unary function, const Tensor& x, Tensor& out) {
  switch (function) {
    case Unary::kSigmoid:
      return sigmoid(dev, x, out);
    case Unary::kSilu:
      return silu(dev, x, out);
    case Unary::kRelu:
      return map(dev, x, out, [](float v) { return v <= 0 ? 0.0f : v; });  // NaN stays
    case Unary::kSquare:
      return map(dev, x, out, [](float v) { return v * v; });
    case Unary::kAbs:
      return map(dev, x, out, [](float v) { return std::abs(v); });
    case Unary::kLogFloor:
      return map(dev, x, out, [](float v) { return std::log(v < kFloor ? kFloor : v); });
    case Unary::kClamp01:
      return map(dev, x, out, [](float v) { return v < 0 ? 0.0f : v > 1 ? 1.0f : v; });
    case Unary::kLogit:
      return map(dev, x, out, [](float v) {
        const float p = v < kFloor ? kFloor : v > 1.0f - kFloor ? 1.0f - kFloor : v;
        return std::log(p / (1.0f - p));
      });
  }
}

void apply_gradient_kernel(CpuBackend dev, Unary function, const Tensor& saved, const Tensor& d, Tensor& dx) {
  switch (function) {
    case Unary::kSigmoid:
      return map_slope(dev, saved, d, dx, [](float y) { return y * (1.0f - y); });
    case Unary::kSilu:
      return silu_gradient(dev, saved, d, dx);
    case Unary::kRelu:
      return map_slope(dev, saved, d, dx, [](float y) { return y > 0 ? 1.0f : 0.0f; });
    case Unary::kSquare:
      return map_slope(dev, saved, d, dx, [](float x) { return 2.0f * x; });
    case Unary::kAbs:
      return map_slope(dev, saved, d, dx, [](float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; });
    case Unary::kLogFloor:
      return map_slope(dev, saved, d, dx, [](float x) { return x < kFloor ? 0.0f : 1.0f / x; });
    case Unary::kClamp01:
      return map_slope(dev, saved, d, dx, [](float y) { return y > 0 && y < 1 ? 1.0f : 0.0f; });
    case Unary::kLogit:
      return map_slope(dev, saved, d, dx, [](float x) {
        return x < kFloor || x > 1.0f - kFloor ? 0.0f : 1.0f / (x * (1.0f - x));
      });
  }
}

void affine_kernel(CpuBackend dev, const Tensor& x, float scale, float shift, Tensor& out) {
  map(dev, x, out, [=](float v) { return v * scale + shift; });
}

void add_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const auto row = row_kernels(dev.isa).add;
  over_elements(dev, out, [&](int64_t begin, int64_t end) {
    row(a.data<float>() + begin, b.data<float>() + begin, out.data<float>() + begin, end - begin);
  });
}

void multiply_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const float *left = a.data<float>(), *right = b.data<float>();
  float* to = out.data<float>();
  over_elements(dev, out, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = left[i] * right[i];
  });
}

}  // namespace fathom
