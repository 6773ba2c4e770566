#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/row_confidence.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 512;

// A block per row, as in token_log_probs: exponentials in f32, their sum in f64.
__global__ void gaps(DeviceFloatRows logits, float* out) {
  const int64_t row = blockIdx.x;
  if (!logits.has(row)) return;
  const float* x = logits.data + row * logits.step;
  float largest = -__builtin_huge_valf();
  for (int64_t i = threadIdx.x; i < logits.width; i += kThreads) largest = fmaxf(largest, x[i]);
  largest = block_max(largest);
  double sum = 0.0, top = 0.0;
  float second = 0.0f;
  for (int64_t i = threadIdx.x; i < logits.width; i += kThreads) {
    const float power = expf(x[i] - largest);
    sum += power;
    if (x[i] == largest) {
      top += 1.0;
    } else {
      second = fmaxf(second, power);
    }
  }
  sum = block_sum(sum);
  top = block_sum(top);
  second = block_max(second);
  if (threadIdx.x != 0) return;
  out[row] = top > 1.0 ? 0.0f : static_cast<float>((1.0 - static_cast<double>(second)) / sum);
}

__global__ void cosines(DeviceFloatRows a, DeviceFloatRows b, float* out) {
  const int64_t row = blockIdx.x;
  if (!a.has(row)) return;
  const float *x = a.data + row * a.step, *y = b.data + row * b.step;
  double xx = 0.0, yy = 0.0, xy = 0.0;
  for (int64_t i = threadIdx.x; i < a.width; i += kThreads) {
    xx += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    yy += static_cast<double>(y[i]) * static_cast<double>(y[i]);
    xy += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
  xx = block_sum(xx);
  yy = block_sum(yy);
  xy = block_sum(xy);
  if (threadIdx.x != 0) return;
  const double lengths = sqrt(xx) * sqrt(yy);
  out[row] = lengths > 0.0 ? static_cast<float>(xy / lengths) : 0.0f;
}

}  // namespace

void softmax_gap_kernel(CudaBackend dev, const Tensor& logits, Tensor& out) {
  const DeviceFloatRows rows(logits);
  if (rows.rows == 0) return;
  gaps<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(rows, out.data<float>());
  check_launch("softmax_gap");
}

void cosine_rows_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const DeviceFloatRows left(a), right(b);
  if (left.rows == 0) return;
  cosines<<<blocks_for(left.rows, 1), kThreads, 0, dev.handle.stream>>>(left, right, out.data<float>());
  check_launch("cosine_rows");
}

}  // namespace fathom
