#include "ops/kernels/copy_rows.cuh"
#include "ops/rows/add_rows.h"

namespace fathom {
namespace {

constexpr int kThreads = 128;

__device__ void count_rows(Work* work, const DeviceRows& kept) {
  if (work && blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0)
    count_work(work, {.unit_rows = static_cast<uint64_t>(kept.count())});
}

// out[kept[i]] += branch[i]. x: along a row, y: rows. Ids differ: each row is written once. step: from a row
// of out to the next.
__global__ void add_to_kept(DeviceRows kept, DeviceFloatRows branch, int64_t step, float* out, Work* work) {
  count_rows(work, kept);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (i >= kept.count()) return;
  float* to = out + kept[i] * step;
  const float* more = branch.data + i * branch.step;
  for (int64_t j = threadIdx.x; j < branch.width; j += blockDim.x) to[j] += more[j];
}

// Every row is kept, and all are dense: whole fours of elements.
__global__ void add_fours(const float4* h, const float4* branch, int64_t fours, float4* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= fours) return;
  const float4 a = h[i], b = branch[i];
  out[i] = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

bool divides(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(float4) == 0;
}

// h in out, where out is another tensor.
void copy_all(CudaBackend dev, const Tensor& h, Tensor& out) {
  if (out.raw() == h.raw()) return;
  const auto width = static_cast<size_t>(h.dim(1)) * sizeof(float);
  cuda_check(
      cudaMemcpy2DAsync(out.raw(), width, h.raw(), static_cast<size_t>(h.stride(0)) * sizeof(float), width,
                        static_cast<size_t>(h.dim(0)), cudaMemcpyDeviceToDevice, dev.handle.stream),
      "cudaMemcpy2DAsync");
}

}  // namespace

void add_rows_kernel(CudaBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch,
                     Tensor& out) {
  if (h.numel() == 0) return;
  const DeviceFloatRows from(branch);
  if (kept.is_all()) {
    dev.counters.add({.unit_rows = static_cast<uint64_t>(h.dim(0))});
    const bool fours = h.is_contiguous() && branch.is_contiguous() && h.numel() % 4 == 0 &&
                       divides(h.raw()) && divides(branch.raw()) && divides(out.raw());
    if (fours) {
      add_fours<<<blocks_for(h.numel() / 4, kThreads), kThreads, 0, dev.handle.stream>>>(
          h.data<float4>(), branch.data<float4>(), h.numel() / 4, out.data<float4>());
      return check_launch("add_rows");
    }
  }
  copy_all(dev, h, out);
  const DeviceRows rows(kept);
  const dim3 block = copy_block(h.dim(1));
  const int64_t step = out.raw() == h.raw() ? h.stride(0) : h.dim(1);
  if (rows.capacity == 0) return;
  add_to_kept<<<blocks_for(rows.capacity, block.y), block, 0, dev.handle.stream>>>(
      rows, from, step, out.data<float>(), kept.is_all() ? nullptr : device_work(dev));
  check_launch("add_rows");
}

void add_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch) {
  copy_rows(dev, "the gradient of add_rows", d_branch,
            KeptRowsOf{DeviceRows(kept), d.data<float>(), d.dim(1)});
}

}  // namespace fathom
