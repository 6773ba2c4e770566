#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/select_rows.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 1024;

// A block has `share` rows. It asks again about the rows before its own: that is faster than a second kernel.
constexpr int64_t kMostBlocks = 64;

int64_t share_of(int64_t rows) {
  return (rows + kMostBlocks * kThreads - 1) / (kMostBlocks * kThreads) * kThreads;
}
unsigned int blocks_of(int64_t rows) {
  return rows == 0 ? 1 : blocks_for(rows, share_of(rows));
}

// Writes the rows of [0, rows) that wanted(row) says, ascending; each round takes kThreads rows: a ballot
// places a row within its warp, a scan over the 32 warps' totals places the warp.
template <class Fn>
__device__ void write_wanted(int64_t rows, int64_t share, Fn wanted, int32_t* ids, DeviceCount count) {
  __shared__ int32_t totals[kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * share;
  const int64_t end = begin + share < rows ? begin + share : rows;
  if (begin >= rows && blockIdx.x > 0) return;
  int32_t written = 0;
#pragma unroll 8
  for (int64_t row = threadIdx.x; row < begin; row += kThreads) written += wanted(row) ? 1 : 0;
  if (begin > 0) written = block_sum(written);
  for (int64_t first = begin; first < end; first += kThreads) {
    const int64_t row = first + threadIdx.x;
    const bool mine = row < end && wanted(row);
    const unsigned int ballot = __ballot_sync(kAllLanes, mine);
    if (lane == 0) totals[warp] = __popc(ballot);
    __syncthreads();
    int32_t before = 0, all = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w < warp) before += totals[w];
      all += totals[w];
    }
    if (mine) ids[written + before + __popc(ballot & ((1u << lane) - 1u))] = static_cast<int32_t>(row);
    written += all;
    __syncthreads();  // the totals have been read
  }
  if (threadIdx.x == 0 && end == rows) write_count(count, written);
}

__global__ void select(const float* score, const int32_t* score_count, int64_t rows, int64_t share,
                       bool above, const float* threshold, int64_t step, int32_t* ids, DeviceCount count) {
  const int64_t present = score_count ? *score_count : rows;
  write_wanted(
      present, share,
      [=](int64_t r) {
        const float s = score[r], t = threshold[r * step];
        return !(above ? s <= t : s < t);  // NaN is kept
      },
      ids, count);
}

__global__ void select_by_sequence(const float* score, const int32_t* score_count, int64_t rows,
                                   int64_t share, const float* table, int64_t sequences, int64_t columns,
                                   const int32_t* sequence, float own, float least, int32_t* ids,
                                   DeviceCount count) {
  const int64_t present = score_count ? *score_count : rows;
  write_wanted(
      present, share,
      [=](int64_t r) {
        const int32_t at = sequence[r];
        const float of_table = at >= 0 && at < sequences ? table[at * columns] : NAN;
        const float threshold = isnan(of_table) ? own : fmaxf(of_table, least);
        return !(score[r] <= threshold);  // NaN is kept
      },
      ids, count);
}

__global__ void select_others(DeviceRows kept, int64_t rows, int64_t share, int32_t* ids, DeviceCount count) {
  write_wanted(
      rows, share, [=](int64_t r) { return find_kept(kept, r) < 0; }, ids, count);
}

__global__ void fill_mask(DeviceRows kept, int64_t rows, float* out) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r < rows) out[r] = find_kept(kept, r) >= 0 ? 1.0f : 0.0f;
}

}  // namespace

void select_rows_kernel(CudaBackend dev, const Tensor& score, Compare compare, const Tensor& threshold,
                        Tensor& ids, Tensor& count) {
  select<<<blocks_of(score.dim(0)), kThreads, 0, dev.handle.stream>>>(
      score.data<float>(), score.row_count(), score.dim(0), share_of(score.dim(0)),
      compare == Compare::kAbove, threshold.data<float>(), threshold.dim(0) == 1 ? 0 : 1, ids.data<int32_t>(),
      device_count(dev, count));
  check_launch("select_rows");
}

void select_rows_kernel(CudaBackend dev, const Tensor& score, const SequenceThresholds& thresholds,
                        Tensor& ids, Tensor& count) {
  const Tensor& table = thresholds.table;
  select_by_sequence<<<blocks_of(score.dim(0)), kThreads, 0, dev.handle.stream>>>(
      score.data<float>(), score.row_count(), score.dim(0), share_of(score.dim(0)),
      table.data<float>() + thresholds.column, table.dim(0), table.dim(1),
      thresholds.sequence.data<int32_t>(), thresholds.own, thresholds.least, ids.data<int32_t>(),
      device_count(dev, count));
  check_launch("select_rows");
}

void complement_kernel(CudaBackend dev, const RowSet& kept, Tensor& ids, Tensor& count) {
  select_others<<<blocks_of(ids.dim(0)), kThreads, 0, dev.handle.stream>>>(
      DeviceRows(kept), ids.dim(0), share_of(ids.dim(0)), ids.data<int32_t>(), device_count(dev, count));
  check_launch("complement");
}

void row_mask_kernel(CudaBackend dev, const RowSet& kept, Tensor& out) {
  if (out.numel() == 0) return;
  fill_mask<<<blocks_for(out.numel(), kThreads), kThreads, 0, dev.handle.stream>>>(
      DeviceRows(kept), out.numel(), out.data<float>());
  check_launch("row_mask");
}

}  // namespace fathom
