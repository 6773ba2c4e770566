#include "ops/kernels/row_products.h"
#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/scale_rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per row. each: 1 where every column has its own gate, else 0.
__global__ void scale_each_row(DeviceFloatRows x, const float* gate, int64_t step, int64_t each, float* out) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  for (int64_t i = threadIdx.x; i < x.width; i += kThreads)
    out[row * x.width + i] = x.data[row * x.step + i] * gate[row * step + i * each];
}

// A block per row: thread t takes elements t, t + threads, ….
__global__ void multiply_rows(DeviceFloatRows a, DeviceFloatRows b, float* out) {
  const int64_t row = blockIdx.x;
  if (!a.has(row)) return;
  const float *x = a.data + row * a.step, *y = b.data + row * b.step;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) sum = fmaf(x[i], y[i], sum);
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[row] = sum;
}

}  // namespace

void scale_rows_kernel(CudaBackend dev, const Tensor& x, const Tensor& gate, Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  const bool each = gate.rank() == 2;
  scale_each_row<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(
      rows, gate.data<float>(), each ? gate.stride(0) : 1, each ? 1 : 0, out.data<float>());
  check_launch("scale_rows");
}

void row_products_kernel(CudaBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  const DeviceFloatRows left(a), right(b);
  if (left.rows == 0) return;
  multiply_rows<<<blocks_for(left.rows, 1), row_sum_threads(left.width), 0, dev.handle.stream>>>(
      left, right, out.data<float>());
  check_launch("row_products");
}

}  // namespace fathom
