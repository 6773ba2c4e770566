#include "ops/row_set_cuda.cuh"
#include "ops/rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// Where `row` stands among the kept ones, or -1. Ids ascend.
__device__ int64_t find_kept(const DeviceRows& kept, int64_t row) {
  int64_t begin = 0, end = kept.count();
  if (!kept.ids) return row < end ? row : -1;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (kept.ids[middle] < row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < kept.count() && kept.ids[begin] == row ? begin : -1;
}

// A block per row of h.
__global__ void add_kept(DeviceFloatRows h, DeviceRows kept, DeviceFloatRows branch, float* out) {
  const int64_t row = blockIdx.x, at = find_kept(kept, row);
  const float* from = h.data + row * h.step;
  const float* more = branch.data + at * branch.step;
  for (int64_t i = threadIdx.x; i < h.width; i += kThreads) {
    out[row * h.width + i] = at >= 0 ? from[i] + more[i] : from[i];
  }
}

}  // namespace

void add_rows_kernel(CudaBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch,
                     Tensor& out) {
  const DeviceFloatRows rows(h);
  if (rows.rows == 0) return;
  if (kept.is_all()) dev.counters.add({.unit_rows = static_cast<uint64_t>(rows.rows)});
  add_kept<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(
      rows, DeviceRows(kept), DeviceFloatRows(branch), out.data<float>());
  check_launch("add_rows");
}

}  // namespace fathom
