#include <algorithm>
#include <cstdint>

#include "ops/kernels/sort.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/quantile.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;
constexpr int kSumThreads = 1024;

// Sort keys. Rows that do not count get the last key, which no score has: the number of those that do is
// known on the device only.
constexpr uint32_t kSign = 0x80000000u, kLast = 0xffffffffu;
constexpr uint64_t kLastPair = ~uint64_t{0};

// Ascends with the score; a NaN is +∞, −0 is 0.
__device__ uint32_t key_of(float score) {
  const float ordered = isnan(score) ? __builtin_huge_valf() : score == 0 ? 0.0f : score;
  const uint32_t bits = __float_as_uint(ordered);
  return bits & kSign ? ~bits : bits | kSign;
}
__device__ float score_of(uint32_t key) {
  return __uint_as_float(key & kSign ? key ^ kSign : ~key);
}

struct Scores {
  const float* values;
  int64_t rows;
  const int32_t* count;  // rows that are there; null: all
  explicit Scores(const Tensor& scores)
      : values(scores.data<float>()), rows(scores.dim(0)), count(scores.row_count()) {}

  __device__ int64_t present() const { return count ? *count : rows; }
  unsigned int blocks() const { return blocks_for(rows, kThreads); }
};

__device__ int64_t own_row() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// The first of [begin, end) that is not `before`, which holds for a first part of them.
template <class Fn>
__device__ int64_t first_not(int64_t begin, int64_t end, Fn before) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (before(middle)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

__global__ void ascending_keys(Scores scores, const float* valid, uint32_t* keys) {
  const int64_t row = own_row();
  if (row >= scores.rows) return;
  const bool counts = row < scores.present() && (!valid || valid[row] > 0);
  keys[row] = counts ? key_of(scores.values[row]) : kLast;
}

// One thread.
__global__ void pick_quantile(const uint32_t* sorted, int64_t rows, float q, IfEqual if_equal, float* out,
                              int32_t* fault) {
  const int64_t n = first_not(0, rows, [=](int64_t i) { return sorted[i] != kLast; });
  if (n == 0) {
    report_fault(fault, CudaFault::kNoScores);
    *out = __builtin_nanf("");
    return;
  }
  const double place = static_cast<double>(q) * static_cast<double>(n - 1);
  const auto low = static_cast<int64_t>(place);
  const double below = score_of(sorted[low]), part = place - static_cast<double>(low);
  double result = below;
  if (part > 0) {
    const double above = score_of(sorted[low + 1]);
    if (above != below) result = below + (above - below) * part;  // equal: infinities too
  }
  if (if_equal == IfEqual::kBelowAll && sorted[0] == sorted[n - 1]) result = -__builtin_huge_val();
  *out = static_cast<float>(result);
}

__global__ void descending_keys(Scores scores, const float* weights, uint32_t* keys, int32_t* fault) {
  const int64_t row = own_row();
  if (row >= scores.rows) return;
  const bool counts = row < scores.present();
  keys[row] = counts ? ~key_of(scores.values[row]) : kLast;
  if (counts && !(weights[row] >= 0)) report_fault(fault, CudaFault::kScoreWeight);
}

// A tile's weights are added up by a block; a thread then finds its share's place among the tiles and walks
// through that one.
constexpr int64_t kTile = 1024;

// sums[t]: the weights of tile t, in f64. f32 weights of one size add up exactly in f64, in this order as in
// the CPU's.
__global__ void sum_tiles(const float* weights, Scores scores, double* sums) {
  const int64_t n = scores.present(), begin = static_cast<int64_t>(blockIdx.x) * kTile;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < min(n, begin + kTile); i += kThreads)
    sum += static_cast<double>(weights[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// sums[t] becomes the weights before tile t, sums[tiles] all of them. One block: thread t has the t-th of
// kSumThreads equal parts.
__global__ void add_up(double* sums, int64_t tiles) {
  __shared__ double totals[kSumThreads / kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t part = (tiles + kSumThreads - 1) / kSumThreads;
  const int64_t begin = min(tiles, threadIdx.x * part), end = min(tiles, begin + part);
  double own = 0;
  for (int64_t i = begin; i < end; ++i) own += sums[i];
  double upto = own;  // of the warp's lanes up to this one
  for (int step = 1; step < kWarp; step *= 2) {
    const double before = __shfl_up_sync(kAllLanes, upto, step);
    if (lane >= step) upto = before + upto;
  }
  if (lane == kWarp - 1) totals[warp] = upto;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < warp; ++w) sum += totals[w];
  const double before = __shfl_up_sync(kAllLanes, upto, 1);
  if (threadIdx.x == kSumThreads - 1) sums[tiles] = sum + upto;
  if (lane > 0) sum += before;
  for (int64_t i = begin; i < end; ++i) {
    const double of_tile = sums[i];
    sums[i] = sum;
    sum += of_tile;
  }
}

constexpr int kShares = 64;

struct Shares {
  float value[kShares];
};

// A thread per share: the last entry above which no more than the share lies.
__global__ void pick_weighted(const uint32_t* sorted, const float* weights, const double* passed,
                              int64_t tiles, Scores scores, Shares shares, float* out, int32_t* fault) {
  const int64_t n = scores.present();
  if (n == 0) {
    if (threadIdx.x == 0) report_fault(fault, CudaFault::kNoScores);
    out[threadIdx.x] = __builtin_nanf("");
    return;
  }
  const double most = (static_cast<double>(shares.value[threadIdx.x]) + kShareRounding) * passed[tiles];
  const int64_t tile =
      first_not(1, (n + kTile - 1) / kTile, [=](int64_t t) { return !(passed[t] > most); }) - 1;
  int64_t at = tile * kTile;
  double above = passed[tile];
  for (const int64_t end = min(n, at + kTile) - 1; at < end; ++at) {
    above += static_cast<double>(weights[at]);
    if (above > most) break;
  }
  out[threadIdx.x] = score_of(~sorted[at]);
}

// By sequence, then from the highest score.
__global__ void sequence_keys(Scores scores, const int32_t* sequence, uint64_t* keys, int32_t* numbers) {
  const int64_t row = own_row();
  if (row >= scores.rows) return;
  numbers[row] = static_cast<int32_t>(row);
  keys[row] = kLastPair;
  if (row >= scores.present()) return;
  const uint32_t of = static_cast<uint32_t>(sequence[row]) ^ kSign;
  keys[row] = static_cast<uint64_t>(of) << 32 | ~key_of(scores.values[row]);
}

// A thread per sorted row.
__global__ void mark_top(const uint64_t* sorted, const int32_t* numbers, Scores scores, float share,
                         float* out) {
  const int64_t at = own_row(), n = scores.present();
  if (at >= n) return;
  const uint64_t of = sorted[at] >> 32;
  const int64_t first = first_not(0, at, [=](int64_t i) { return sorted[i] >> 32 != of; });
  const int64_t last = first_not(at, n, [=](int64_t i) { return sorted[i] >> 32 == of; });
  const double kept = ceil((static_cast<double>(share) - kShareRounding) * static_cast<double>(last - first));
  out[numbers[at]] = static_cast<double>(at - first) < kept ? 1.0f : 0.0f;
}

}  // namespace

void quantile_kernel(CudaBackend dev, Context& ctx, const Tensor& scores, float q, const Tensor& valid,
                     IfEqual if_equal, Tensor& out) {
  const Scores rows(scores);
  Tensor keys = Tensor::empty(ctx, DType::kI32, {2, rows.rows});
  auto *key = keys.data<uint32_t>(), *sorted = key + rows.rows;
  if (rows.rows > 0) {
    ascending_keys<<<rows.blocks(), kThreads, 0, dev.handle.stream>>>(
        rows, valid ? valid.data<float>() : nullptr, key);
    check_launch("quantile");
    sort_keys(dev, ctx, key, sorted, rows.rows);
  }
  pick_quantile<<<1, 1, 0, dev.handle.stream>>>(sorted, rows.rows, q, if_equal, out.data<float>(),
                                                dev.handle.fault);
  check_launch("quantile");
}

void weighted_quantile_kernel(CudaBackend dev, Context& ctx, const Tensor& scores, const Tensor& weights,
                              std::span<const float> shares, Tensor& out) {
  const Scores rows(scores);
  Tensor keys = Tensor::empty(ctx, DType::kI32, {2, rows.rows});
  Tensor sorted_weights = Tensor::empty(ctx, DType::kF32, {rows.rows});
  const int64_t tiles = blocks_for(rows.rows, kTile);
  Tensor sums = Tensor::empty(ctx, DType::kU8, {(tiles + 1) * static_cast<int64_t>(sizeof(double))});
  auto *key = keys.data<uint32_t>(), *sorted = key + rows.rows;
  if (rows.rows > 0) {
    descending_keys<<<rows.blocks(), kThreads, 0, dev.handle.stream>>>(rows, weights.data<float>(), key,
                                                                       dev.handle.fault);
    check_launch("weighted_quantile");
    sort_pairs(dev, ctx, key, sorted, weights.data<float>(), sorted_weights.data<float>(), rows.rows);
    sum_tiles<<<blocks_for(rows.rows, kTile), kThreads, 0, dev.handle.stream>>>(sorted_weights.data<float>(),
                                                                                rows, sums.data<double>());
    check_launch("weighted_quantile");
  }
  add_up<<<1, kSumThreads, 0, dev.handle.stream>>>(sums.data<double>(), tiles);
  check_launch("weighted_quantile");
  for (size_t first = 0; first < shares.size(); first += kShares) {
    const std::span<const float> some =
        shares.subspan(first, std::min<size_t>(kShares, shares.size() - first));
    Shares call{};
    std::copy(some.begin(), some.end(), call.value);
    pick_weighted<<<1, static_cast<unsigned int>(some.size()), 0, dev.handle.stream>>>(
        sorted, sorted_weights.data<float>(), sums.data<double>(), tiles, rows, call,
        out.data<float>() + first, dev.handle.fault);
    check_launch("weighted_quantile");
  }
}

void top_share_kernel(CudaBackend dev, Context& ctx, const Tensor& scores, const Tensor& sequence,
                      float share, Tensor& out) {
  const Scores rows(scores);
  if (rows.rows == 0) return;
  Tensor keys = Tensor::empty(ctx, DType::kI32, {2, rows.rows, 2});
  Tensor numbers = Tensor::empty(ctx, DType::kI32, {2, rows.rows});
  auto *key = keys.data<uint64_t>(), *sorted = key + rows.rows;
  auto *number = numbers.data<int32_t>(), *sorted_numbers = number + rows.rows;
  sequence_keys<<<rows.blocks(), kThreads, 0, dev.handle.stream>>>(rows, sequence.data<int32_t>(), key,
                                                                   number);
  check_launch("top_share_by_sequence");
  sort_pairs(dev, ctx, key, sorted, number, sorted_numbers, rows.rows);
  mark_top<<<rows.blocks(), kThreads, 0, dev.handle.stream>>>(sorted, sorted_numbers, rows, share,
                                                              out.data<float>());
  check_launch("top_share_by_sequence");
}

}  // namespace fathom
