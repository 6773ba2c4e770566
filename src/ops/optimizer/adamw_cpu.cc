#include <cmath>

#include "ops/kernels/row_access.h"
#include "ops/optimizer/adamw.h"

namespace fathom {
namespace {

void move(AdamWBuffers& buffers, int64_t begin, int64_t end, const AdamWSegment& segment,
          const AdamWParams& params) {
  float* __restrict value = buffers.value.data<float>();
  const float* __restrict gradient = buffers.gradient.data<float>();
  float* __restrict mean = buffers.mean.data<float>();
  float* __restrict square = buffers.square.data<float>();
  const auto [beta1, beta2, eps, root, factor] = params;
  const float rate = segment.rate, keep = segment.keep;
  for (int64_t i = begin; i < end; ++i) {
    const float g = gradient[i] * factor;
    mean[i] = beta1 * mean[i] + (1 - beta1) * g;
    square[i] = beta2 * square[i] + (1 - beta2) * g * g;
    value[i] = value[i] * keep - rate * mean[i] / (std::sqrt(square[i]) * root + eps);
  }
}

}  // namespace

void adamw_kernel(CpuBackend dev, AdamWBuffers& buffers, std::span<const AdamWSegment> segments,
                  const AdamWParams& params) {
  for (const AdamWSegment& segment : segments) {
    dev.pool.parallel_for(segment.end - segment.begin, kElementGrain, [&](int64_t begin, int64_t end) {
      move(buffers, segment.begin + begin, segment.begin + end, segment, params);
    });
  }
}

}  // namespace fathom
