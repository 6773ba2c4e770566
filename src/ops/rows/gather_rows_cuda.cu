#include "ops/kernels/copy_rows.cuh"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

// Rows of `out` past the count are not written. Rows are copied as words of four bytes.
__global__ void copy_kept(const int32_t* x, int64_t step, int64_t width, DeviceRows kept, int32_t* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= kept.count()) return;
  const int32_t* from = x + kept[i] * step;
  for (int64_t j = threadIdx.x; j < width; j += blockDim.x) out[i * width + j] = from[j];
}

// Ids differ: each row of `sum` is written once.
__global__ void add_to_kept(const float* d, int64_t width, DeviceRows kept, float* sum) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= kept.count()) return;
  float* to = sum + kept[i] * width;
  for (int64_t j = threadIdx.x; j < width; j += blockDim.x) to[j] += d[i * width + j];
}

struct Spread {
  DeviceRows kept;
  const float* from;
  int64_t width;
  __device__ const float* operator()(int64_t row) const {
    const int64_t at = find_kept(kept, row);
    return at >= 0 ? from + at * width : nullptr;
  }
};

int64_t width_of(const Tensor& x) {
  return x.rank() == 1 ? 1 : x.dim(1);
}

}  // namespace

void gather_rows_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, Tensor& out) {
  const DeviceRows rows(kept);
  const auto words = [&](int64_t elements) { return row_bytes(x.dtype(), elements) / 4; };
  const int64_t width = words(width_of(x));
  const dim3 block = copy_block(width);
  if (rows.capacity == 0) return;
  copy_kept<<<blocks_for(rows.capacity, block.y), block, 0, dev.handle.stream>>>(
      x.data<int32_t>(), words(x.stride(0)), width, rows, out.data<int32_t>());
  check_launch("gather_rows");
}

void gather_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& sum) {
  const DeviceRows rows(kept);
  const dim3 block = copy_block(width_of(d));
  if (rows.capacity == 0) return;
  add_to_kept<<<blocks_for(rows.capacity, block.y), block, 0, dev.handle.stream>>>(
      d.data<float>(), width_of(d), rows, sum.data<float>());
  check_launch("the gradient of gather_rows");
}

void spread_rows_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& dx) {
  copy_rows(dev, "the gradient of gather_rows", dx, Spread{DeviceRows(kept), d.data<float>(), width_of(d)});
}

}  // namespace fathom
