#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/steer_block.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

struct SteeringInput {
  const float* score;
  const int32_t* count;  // of the rows; null: `rows`
  int64_t rows;
  const float* table;  // of this unit: parts are `units` apart
  int64_t sequences, units;
  const int32_t *sequence, *positions;
  float own, least;
  DeviceRows present;
  bool all_present, counts;
};

struct SteeringHistory {
  SteeredBlock* blocks;  // of this unit: blocks are `units` apart
  int64_t sequences, length, units;
  int32_t* fault;
};

__device__ SteeringRule rule_of(const SteeringInput& in, int64_t s) {
  if (s >= in.sequences) return {NAN, NAN, 0, 0, 0};
  const float* row = in.table + s * kSteeringParts * in.units;
  return {row[0], row[in.units], row[2 * in.units], row[3 * in.units], row[4 * in.units]};
}

// Rows of one block of a sequence: those of the lanes in `group`.
__device__ void steer_group(const SteeringInput& in, const SteeringHistory& history, const SteeringRule& rule,
                            int64_t s, int64_t row, int position, unsigned int group, float* out) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool mine = (group >> lane & 1u) != 0, steers = !isnan(rule.threshold) && rule.share >= 0;
  const int64_t k = __shfl_sync(kAllLanes, position, __ffs(static_cast<int>(group)) - 1) / kSteeredRows;
  if (k >= history.length) {
    if (lane == 0) report_fault(history.fault, CudaFault::kSequence);
    return;
  }
  SteeredBlock* at = history.blocks + (s * history.length + k) * history.units;
  SteeredBlock block = *at;
  const int place = position % static_cast<int>(kSteeredRows);
  const bool counts = mine && in.counts && (in.all_present || find_kept(in.present, row) >= 0);
  if (__ballot_sync(kAllLanes, counts && place == 0) != 0) {
    block.excess = steers ? rule.start : 0;
    if (k > 0) {
      const SteeredBlock before = *(at - history.units);
      block.excess =
          steers ? excess_after(before, rule.share, __popc(before.ran), __popc(before.seen)) : before.excess;
    }
  }
  float threshold = isnan(rule.threshold) ? in.own : fmaxf(rule.threshold, in.least);
  if (steers) threshold = fmaxf(steered(rule, block.excess), in.least);
  if (mine) out[row] = threshold;
  const unsigned int bit = counts ? 1u << place : 0u;
  const unsigned int counted = __reduce_or_sync(kAllLanes, bit);
  if (counted == 0) return;
  const bool runs = counts && steers && !(in.score[row] <= threshold);  // NaN runs
  const unsigned int ran = __reduce_or_sync(kAllLanes, runs ? bit : 0u);
  const unsigned int before = (counted & (0u - counted)) - 1;  // rows of the block before these
  block.ran = (block.ran & before) | ran;
  block.seen = (block.seen & before) | (steers ? counted : 0u);
  __syncwarp();  // every lane has read it
  if (lane == 0) *at = block;
  __syncwarp();
}

// A warp for each sequence, which takes its rows out of all, 32 at a time; one more for rows of no sequence
// of the history.
__global__ void steer(SteeringInput in, SteeringHistory history, float* out) {
  const int64_t s = blockIdx.x, rows = in.count ? *in.count : in.rows;
  const SteeringRule rule = rule_of(in, s);
  for (int64_t first = 0; first < rows; first += kWarp) {
    const int64_t row = first + threadIdx.x;
    const int64_t of = row < rows ? in.sequence[row] : -1;
    if (s == history.sequences) {
      if (row >= rows || (of >= 0 && of < history.sequences)) continue;
      const float threshold = of >= 0 ? rule_of(in, of).threshold : NAN;
      out[row] = isnan(threshold) ? in.own : fmaxf(threshold, in.least);
      continue;
    }
    const bool mine = row < rows && of == s;
    const int position = mine ? in.positions[row] : -1;
    unsigned int left = __ballot_sync(kAllLanes, mine);
    while (left != 0) {
      const int leader = __ffs(static_cast<int>(left)) - 1;
      const int64_t k = __shfl_sync(kAllLanes, position, leader) / kSteeredRows;
      const unsigned int group = __ballot_sync(kAllLanes, mine && position / kSteeredRows == k);
      steer_group(in, history, rule, s, row, position, group, out);
      left &= ~group;
    }
  }
}

}  // namespace

void steered_thresholds_kernel(CudaBackend dev, const Tensor& score, const Steering& steering,
                               Tensor& history, Tensor& out) {
  if (score.dim(0) == 0) return;
  const int64_t units = history.dim(2);
  const SteeringInput in{score.data<float>(),
                         score.row_count(),
                         score.dim(0),
                         steering.table.data<float>() + steering.unit,
                         steering.table.dim(0),
                         units,
                         steering.sequence.data<int32_t>(),
                         steering.positions.data<int32_t>(),
                         steering.own,
                         steering.least,
                         DeviceRows(steering.present ? *steering.present : RowSet::all(score.dim(0))),
                         steering.present == nullptr,
                         steering.counts};
  const SteeringHistory past{reinterpret_cast<SteeredBlock*>(history.data<int32_t>()) + steering.unit,
                             history.dim(0), history.dim(1), units, dev.handle.fault};
  steer<<<static_cast<unsigned int>(history.dim(0) + 1), kWarp, 0, dev.handle.stream>>>(in, past,
                                                                                        out.data<float>());
  check_launch("steered_thresholds");
}

}  // namespace fathom
