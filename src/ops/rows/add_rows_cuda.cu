#include "ops/kernels/row_set_cuda.cuh"
#include "ops/rows/add_rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

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
