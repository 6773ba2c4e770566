#include "ops/kernels/bf16.cuh"
#include "ops/kernels/copy_rows.cuh"
#include "ops/kernels/warp_rows.cuh"
#include "ops/rows/add_rows.h"

namespace fathom {
namespace {

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

// The same in fours: out[r] = h[r] + branch[i] of row r = kept[i]. out may be h.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    add_fours(DeviceRows kept, const float* h, int64_t h_step, const T* branch, int64_t branch_step,
              int width, float* out, int64_t step, Work* work) {
  count_rows(work, kept);
  const int64_t count = kept.count();
  for (int64_t i = first_row(); i < count; i += next_row()) {
    const int64_t row = kept[i];
    for (int j = 4 * own_lane(); j < width; j += kRowStep)
      store_four(out + row * step + j,
                 sum_of(load_four(h + row * h_step + j), load_four(branch + i * branch_step + j)));
  }
}

// out = h with the branch in the kept rows. A warp has kCopyRows rows: their kept ones lie side by side.
constexpr int kCopyRows = 8;
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    copy_and_add_fours(DeviceRows kept, int64_t rows, const float* h, int64_t h_step, const T* branch,
                       int64_t branch_step, int width, float* out, Work* work) {
  count_rows(work, kept);
  const int64_t begin = first_row() * kCopyRows, count = kept.count();
  if (begin >= rows) return;
  int64_t place = first_kept(kept, begin);
  const int64_t mine = place + own_lane();
  const int64_t after = mine < count ? kept[mine] - begin : kCopyRows;  // of the warp's rows
  const unsigned int mask = __reduce_or_sync(kAllLanes, after < kCopyRows ? 1u << after : 0u);
  for (int r = 0; r < kCopyRows && begin + r < rows; ++r) {
    const bool runs = (mask >> r & 1u) != 0;
    for (int j = 4 * own_lane(); j < width; j += kRowStep) {
      const float4 v = load_four(h + (begin + r) * h_step + j);
      store_four(out + (begin + r) * width + j,
                 runs ? sum_of(v, load_four(branch + place * branch_step + j)) : v);
    }
    place += runs ? 1 : 0;
  }
}

// A kept row of d, rounded, and its product with the branch's row.
__global__ void __launch_bounds__(kRowThreads)
    gradients_in_fours(DeviceRows kept, const Bf16* branch, const float* d, int width, Bf16* d_branch,
                       float* d_score) {
  const int64_t count = kept.count();
  for (int64_t i = first_row(); i < count; i += next_row()) {
    const int64_t row = kept[i];
    float along = 0.0f;
#pragma unroll 2
    for (int j = 4 * own_lane(); j < width; j += kRowStep) {
      const float4 from = load_four(d + row * width + j);
      if (d_branch) store_four(d_branch + i * width + j, from);
      if (d_score) along = add_products(from, load_four(branch + i * width + j), along);
    }
    if (!d_score) continue;
    along = warp_sum(along);
    if (own_lane() == 0) d_score[row] = along;
  }
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
  if (kept.is_all()) dev.counters.add({.unit_rows = static_cast<uint64_t>(h.dim(0))});
  const DeviceRows rows(kept);
  const bool bf16 = branch.dtype() == DType::kBF16, fours = in_fours(h) && in_fours(branch) && in_fours(out);
  const bool copies = out.raw() != h.raw(), in_one = fours && rows.capacity > 0;
  if (copies && !in_one) copy_all(dev, h, out);
  if (rows.capacity == 0) return;
  Work* work = kept.is_all() ? nullptr : device_work(dev);
  const int64_t step = copies ? h.dim(1) : h.stride(0);
  const auto width = static_cast<int>(h.dim(1));
  const auto start = [&](const auto* more) {
    if (copies && !kept.is_all())
      return copy_and_add_fours<<<blocks_for(h.dim(0), kCopyRows * kRowWarps), kRowThreads, 0,
                                  dev.handle.stream>>>(rows, h.dim(0), h.data<float>(), h.stride(0), more,
                                                       branch.stride(0), width, out.data<float>(), work);
    add_fours<<<row_blocks(rows.capacity), kRowThreads, 0, dev.handle.stream>>>(
        rows, h.data<float>(), h.stride(0), more, branch.stride(0), width, out.data<float>(), step, work);
  };
  if (bf16) {
    start(branch.data<Bf16>());
  } else if (fours) {
    start(branch.data<float>());
  } else {
    const dim3 block = copy_block(h.dim(1));
    add_to_kept<<<blocks_for(rows.capacity, block.y), block, 0, dev.handle.stream>>>(
        rows, DeviceFloatRows(branch), step, out.data<float>(), work);
  }
  check_launch("add_rows");
}

void add_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch) {
  copy_rows(dev, "the gradient of add_rows", d_branch,
            KeptRowsOf{DeviceRows(kept), d.data<float>(), d.dim(1)});
}

void add_bf16_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& branch, const Tensor& d,
                                   Tensor& d_branch, Tensor& d_score) {
  const DeviceRows rows(kept);
  if (rows.capacity == 0 || d.numel() == 0) return;
  gradients_in_fours<<<row_blocks(rows.capacity), kRowThreads, 0, dev.handle.stream>>>(
      rows, d_score ? branch.data<Bf16>() : nullptr, d.data<float>(), static_cast<int>(d.dim(1)),
      d_branch ? d_branch.data<Bf16>() : nullptr, d_score ? d_score.data<float>() : nullptr);
  check_launch("the gradient of add_rows");
}

}  // namespace fathom
