#include "ops/linear/score_head.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

__global__ void find_slopes(const float* score, const float* d, int64_t rows, float cost, float2* slopes) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const float s = score[row], less = 1.0f - s;
  slopes[row] = make_float2(d ? d[row] * (s * less) : 0.0f, cost * s * less);
}

}  // namespace

void score_slopes_kernel(CudaBackend dev, const Tensor& score, const Tensor& d, float cost, Tensor& slopes) {
  const int64_t rows = score.dim(0);
  if (rows == 0) return;
  find_slopes<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(
      score.data<float>(), d ? d.data<float>() : nullptr, rows, cost, slopes.data<float2>());
  check_launch("the gradient of score_head");
}

}  // namespace fathom
