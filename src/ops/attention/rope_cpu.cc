#include <algorithm>
#include <cmath>

#include "ops/attention/rope.h"
#include "ops/kernels/row_access.h"

namespace fathom {
namespace {

// The angle is a product of floats, as Hugging Face computes it: at large positions its rounding is part of
// the model.
void fill_turn(const RowKernels& kernels, float position, const float* inverse_frequency, float largest,
               int64_t half, float magnitude, float* cos, float* sin) {
  if (std::abs(position) * largest < 2e5f)
    return kernels.turn(position, inverse_frequency, magnitude, cos, sin, half);
  for (int64_t i = 0; i < half; ++i) {
    const float angle = position * inverse_frequency[i];
    cos[i] = std::cos(angle) * magnitude;
    sin[i] = std::sin(angle) * magnitude;
  }
}

void rotate_pairs(const float* x, const float* cos, const float* sin, float* out, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[2 * i] = a * cos[i] - b * sin[i];
    out[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

// direction: 1, or −1 to turn back.
void turn_rows(CpuBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
               RopeParams params, float direction, Tensor& out) {
  const int64_t rows = present_rows(x), heads = x.dim(1), dim = x.dim(2), half = dim / 2;
  const RowKernels& kernels = row_kernels(dev.isa);
  const float* frequency = inverse_frequency.data<float>();
  float largest = 0;
  for (int64_t i = 0; i < half; ++i) largest = std::max(largest, std::abs(frequency[i]));
  dev.pool.parallel_for(rows, row_grain(heads * dim), [&](int64_t begin, int64_t end) {
    float cos[kMaxRopeDim / 2], sin[kMaxRopeDim / 2];
    for (int64_t r = begin; r < end; ++r) {
      const auto position = static_cast<float>(positions.data<int32_t>()[r]);
      fill_turn(kernels, position, frequency, largest, half, params.magnitude, cos, sin);
      for (int64_t i = 0; i < half; ++i) sin[i] *= direction;
      for (int64_t h = 0; h < heads; ++h) {
        const float* from = x.data<float>() + (r * heads + h) * dim;
        float* to = out.data<float>() + (r * heads + h) * dim;
        if (params.style == RopeStyle::kHalves) {
          kernels.rotate(from, from + half, cos, sin, to, to + half, half);
        } else {
          rotate_pairs(from, cos, sin, to, half);
        }
      }
    }
  });
}

}  // namespace

void rope_kernel(CpuBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params, Tensor& out) {
  turn_rows(dev, x, positions, inverse_frequency, params, 1.0f, out);
}

void rope_gradient_kernel(CpuBackend dev, const Tensor& d, const Tensor& positions,
                          const Tensor& inverse_frequency, RopeParams params, Tensor& dx) {
  turn_rows(dev, d, positions, inverse_frequency, params, -1.0f, dx);
}

}  // namespace fathom
