#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/rms_norm.h"
#include "tensor/cuda_util.cuh"

namespace fathom {

namespace {

// 1 / sqrt(mean(x²) + eps), by a block: thread t squares elements t, t + threads, ….
__device__ float inverse_root(const float* x, int64_t width, float eps) {
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
  return 1.0f / sqrtf(block_sum(sum) / static_cast<float>(width) + eps);
}

// A block per row.
__global__ void rms_norm_rows(DeviceFloatRows x, const float* weight, RmsNormParams params, float* out) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float* in = x.data + row * x.step;
  const float inverse = inverse_root(in, x.width, params.eps);
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x) {
    out[row * x.width + i] = in[i] * inverse * (weight[i] + params.weight_offset);
  }
}

// With w = weight + offset and i = 1 / sqrt(mean(x²) + eps): dx = i · w · d − x · i³ / n · Σ w d x. A block
// per row.
__global__ void gradients_of_rows(DeviceFloatRows x, const float* weight, RmsNormParams params,
                                  DeviceFloatRows d, float* dx) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float *in = x.data + row * x.step, *from = d.data + row * d.step;
  const float inverse = inverse_root(in, x.width, params.eps);
  float along = 0.0f;
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x)
    along = fmaf((weight[i] + params.weight_offset) * from[i], in[i], along);
  along = block_sum(along);
  const float back = -along / static_cast<float>(x.width) * inverse * inverse * inverse;
  for (int64_t i = threadIdx.x; i < x.width; i += blockDim.x)
    dx[row * x.width + i] = fmaf(in[i], back, from[i] * (weight[i] + params.weight_offset) * inverse);
}

__global__ void inverse_roots(DeviceFloatRows x, float eps, float* inverse) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float value = inverse_root(x.data + row * x.step, x.width, eps);
  if (threadIdx.x == 0) inverse[row] = value;
}

// The weight's gradient is a sum over all rows. First kPartRows of them at a time, kLanes for each column,
// then those parts, kJoinLanes for each column; all in f64 and in one order.
constexpr int kColumns = 32, kLanes = 8, kPartRows = 128, kJoinLanes = 32;

// The sum over a column's lanes, for lane 0.
template <int kCount>
__device__ double sum_of_lanes(double value) {
  __shared__ double sums[kCount][kColumns];
  sums[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.y == 0)
    for (int lane = 0; lane < kCount; ++lane) sum += sums[lane][threadIdx.x];
  return sum;
}

// parts: (parts, width). Rows that are not there add nothing.
__global__ void sum_parts(DeviceFloatRows x, const float* inverse, DeviceFloatRows d, double* parts) {
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kColumns + threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPartRows, count = x.count();
  const int64_t end = begin + kPartRows < count ? begin + kPartRows : count;
  double sum = 0.0;
  if (column < x.width)
    for (int64_t r = begin + threadIdx.y; r < end; r += kLanes)
      sum += static_cast<double>(x.data[r * x.step + column] * inverse[r] * d.data[r * d.step + column]);
  sum = sum_of_lanes<kLanes>(sum);
  if (threadIdx.y == 0 && column < x.width) parts[blockIdx.x * x.width + column] = sum;
}

__global__ void join_parts(const double* parts, int64_t count, int64_t width, float* d_weight) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  double sum = 0.0;
  if (column < width)
    for (int64_t p = threadIdx.y; p < count; p += kJoinLanes) sum += parts[p * width + column];
  sum = sum_of_lanes<kJoinLanes>(sum);
  if (threadIdx.y == 0 && column < width) d_weight[column] += static_cast<float>(sum);
}

}  // namespace

void rms_norm_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                     Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  rms_norm_rows<<<blocks_for(rows.rows, 1), row_sum_threads(rows.width), 0, dev.handle.stream>>>(
      rows, weight.data<float>(), params, out.data<float>());
  check_launch("rms_norm");
}

void rms_norm_dx_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                        const Tensor& d, Tensor& dx) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  gradients_of_rows<<<blocks_for(rows.rows, 1), row_sum_threads(rows.width), 0, dev.handle.stream>>>(
      rows, weight.data<float>(), params, DeviceFloatRows(d), dx.data<float>());
  check_launch("the gradient of rms_norm");
}

// The parts in f64, then a number per row.
int64_t rms_norm_scratch(CudaBackend, const Tensor& x) {
  const DeviceFloatRows rows(x);
  return 2 * static_cast<int64_t>(blocks_for(rows.rows, kPartRows)) * rows.width + rows.rows;
}

void rms_norm_dweight_kernel(CudaBackend dev, const Tensor& x, RmsNormParams params, const Tensor& d,
                             Tensor& scratch, Tensor& d_weight) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  const unsigned int parts = blocks_for(rows.rows, kPartRows), columns = blocks_for(rows.width, kColumns);
  double* sums = scratch.data<double>();
  float* inverse = scratch.data<float>() + 2 * static_cast<int64_t>(parts) * rows.width;
  inverse_roots<<<blocks_for(rows.rows, 1), row_sum_threads(rows.width), 0, dev.handle.stream>>>(
      rows, params.eps, inverse);
  sum_parts<<<dim3(parts, columns), dim3(kColumns, kLanes), 0, dev.handle.stream>>>(rows, inverse,
                                                                                    DeviceFloatRows(d), sums);
  join_parts<<<columns, dim3(kColumns, kJoinLanes), 0, dev.handle.stream>>>(sums, parts, rows.width,
                                                                            d_weight.data<float>());
  check_launch("the gradient of rms_norm");
}

}  // namespace fathom
