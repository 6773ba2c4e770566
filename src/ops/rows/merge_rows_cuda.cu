#include "ops/kernels/row_set_cuda.cuh"
#include "ops/rows/merge_rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

// A block per row; count: of below's rows, null: every row is there.
__global__ void merge_kept(const float* below, const float* fresh, DeviceRows kept, const int32_t* count,
                           int64_t width, float* out) {
  const int64_t row = blockIdx.x;
  if (count && row >= *count) return;
  const int64_t at = find_kept(kept, row);
  const float* from = at >= 0 ? fresh + at * width : below + row * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) out[row * width + i] = from[i];
}

}  // namespace

void merge_rows_kernel(CudaBackend dev, const Tensor& below, const RowSet& kept, const Tensor& fresh,
                       Tensor& out) {
  const int64_t rows = below.dim(0);
  if (below.numel() == 0) return;
  merge_kept<<<blocks_for(rows, 1), kThreads, 0, dev.handle.stream>>>(
      below.data<float>(), fresh.data<float>(), DeviceRows(kept), below.row_count(), below.numel() / rows,
      out.data<float>());
  check_launch("merge_rows");
}

}  // namespace fathom
