#include "ops/kernels/copy_rows.cuh"
#include "ops/rows/add_rows.h"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per row of h. In place, only the kept rows are touched. step: from a row of out to the next.
__global__ void add_kept(DeviceFloatRows h, DeviceRows kept, DeviceFloatRows branch, int64_t step, float* out,
                         Work* work) {
  const int64_t row = blockIdx.x, at = find_kept(kept, row);
  if (work && row == 0 && threadIdx.x == 0)
    count_work(work, {.unit_rows = static_cast<uint64_t>(kept.count())});
  if (at < 0 && out == h.data) return;
  const float* from = h.data + row * h.step;
  const float* more = branch.data + at * branch.step;
  for (int64_t i = threadIdx.x; i < h.width; i += kThreads) {
    out[row * step + i] = at >= 0 ? from[i] + more[i] : from[i];
  }
}

}  // namespace

void add_rows_kernel(CudaBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch,
                     Tensor& out) {
  const DeviceFloatRows rows(h);
  if (rows.rows == 0) return;
  const bool known = kept.is_all() || kept.is_none();
  if (kept.is_all()) dev.counters.add({.unit_rows = static_cast<uint64_t>(rows.rows)});
  add_kept<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(
      rows, DeviceRows(kept), DeviceFloatRows(branch), out.raw() == h.raw() ? rows.step : rows.width,
      out.data<float>(), known ? nullptr : device_work(dev));
  check_launch("add_rows");
}

void add_rows_gradient_kernel(CudaBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch) {
  copy_rows(dev, "the gradient of add_rows", d_branch,
            KeptRowsOf{DeviceRows(kept), d.data<float>(), d.dim(1)});
}

}  // namespace fathom
