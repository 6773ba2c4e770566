// Products of inference with bf16 weights, on tensor cores. An activation is the sum of two bf16 numbers,
// which hold 16 bits of it, so a product is as good as f32 arithmetic nearly makes it. The order of an
// output's sum is fixed: quarters of the row, each 16 elements at a time, ascending, then the quarters' sums
// in order. Few rows (decoding) have a warp for each quarter, many rows have one warp for all, and a row's
// bits do not depend on which.
#include <algorithm>

#include "ops/kernels/bf16.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/linear/linear_cuda.cuh"

namespace fathom {
namespace {

constexpr int kDepth = 16;  // elements of a row that one instruction multiplies
constexpr int kQuarters = 4;

// Elements of a quarter of a row; the last ones may have fewer.
__device__ inline int quarter_of(int in) {
  return (in + kQuarters * kDepth - 1) / (kQuarters * kDepth) * kDepth;
}

// The lane's place in a fragment, as tensor_core.cuh names it.
__device__ inline int lane_g() {
  return static_cast<int>(threadIdx.x) % kWarp / 4;
}
__device__ inline int lane_t() {
  return static_cast<int>(threadIdx.x) % 4;
}

// Four pairs of activations as A of a product: `high` rounded, `low` what that left out.
struct Split {
  uint32_t high[4], low[4];
  __device__ void set(int i, float x, float y) {
    high[i] = pack_bf16(x, y);
    low[i] = pack_bf16(x - unpack_bf16(high[i], 0), y - unpack_bf16(high[i], 1));
  }
};

__device__ inline void add_product(float (&sums)[4], const Split& x, uint32_t b0, uint32_t b1) {
  multiply_add(sums, x.low, b0, b1);
  multiply_add(sums, x.high, b0, b1);
}

constexpr int kFewRows = 16, kFewOutputs = 8;  // of a thread block: one fragment for each quarter

__global__ void __launch_bounds__(kQuarters* kWarp) multiply_few(const __grid_constant__ LinearGroup group) {
  __shared__ float partial[kQuarters][kFewRows][kFewOutputs];
  const int g = lane_g(), t = lane_t(), quarter = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kFewRows;
  const int column = static_cast<int>(blockIdx.y) * kFewOutputs;
  const LinearProduct& p = group.product[blockIdx.z];
  const int64_t rows = rows_of(group);
  count_product(group, p, rows);
  if (column >= p.out || row >= rows) return;
  // Rows and outputs past the end repeat the last one and are not stored.
  const float* x[2];
  for (int i = 0; i < 2; ++i) {
    const int64_t r = row + g + 8 * i;
    x[i] = group.x + (r < rows ? r : rows - 1) * group.x_step + 2 * t;
  }
  const int c = column + g < p.out ? column + g : p.out - 1;
  const Bf16* weight = reinterpret_cast<const Bf16*>(p.weight) + int64_t{c} * group.in + 2 * t;
  const int first = quarter * quarter_of(group.in), end = min(first + quarter_of(group.in), group.in);
  float sums[4] = {};
#pragma unroll 8
  for (int at = first; at < end; at += kDepth) {
    const bool whole = at + kDepth <= group.in;  // otherwise eight elements
    Split split;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = x[i % 2] + at + i / 2 * 8;
      const bool there = i < 2 || whole;
      split.set(i, there ? from[0] : 0.0f, there ? from[1] : 0.0f);
    }
    const uint32_t b0 = *reinterpret_cast<const uint32_t*>(weight + at),
                   b1 = whole ? *reinterpret_cast<const uint32_t*>(weight + at + 8) : 0;
    add_product(sums, split, b0, b1);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) partial[quarter][g + i / 2 * 8][2 * t + i % 2] = sums[i];
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x) / kFewOutputs, o = static_cast<int>(threadIdx.x) % kFewOutputs;
  float total = 0.0f;
#pragma unroll
  for (int q = 0; q < kQuarters; ++q) total += partial[q][r][o];
  store_output(p, rows, row + r, column + o, total);
}

constexpr int kPad = 8;  // elements after a row in shared memory, so that eight rows lie in all banks

// Many rows: a thread block computes kRows rows by kOutputs outputs, each of its warps kTilesM × 16 by
// kTilesN × 8 of them, kChunk elements of the rows at a time. kStages chunks are in shared memory or on their
// way.
template <int kWarpsM_, int kWarpsN_, int kTilesM_, int kTilesN_, int kChunk_, int kStages_>
struct Tile {
  static constexpr int kWarpsN = kWarpsN_, kTilesM = kTilesM_, kTilesN = kTilesN_;
  static constexpr int kChunk = kChunk_, kStages = kStages_;
  static constexpr int kRows = kWarpsM_ * kTilesM * 16, kOutputs = kWarpsN * kTilesN * 8;
  static constexpr int kThreads = kWarpsM_ * kWarpsN * kWarp;
};
using ManyRows = Tile<2, 2, 2, 4, 32, 3>;  // 64 × 64

template <class T>
struct alignas(16) Stage {
  float x[T::kRows][T::kChunk + kPad];
  Bf16 weight[T::kOutputs][T::kChunk + kPad];
};

// The four floats at `from`, or zeros where there are none, into shared memory.
__device__ inline void fetch_four(float* to, const float* from, bool there, bool aligned) {
  if (there && aligned) return copy_async(shared_address(to), from);
  for (int i = 0; i < 4; ++i) to[i] = there ? from[i] : 0.0f;
}

__device__ inline void fetch_eight(Bf16* to, const Bf16* from, bool there) {
  if (there) return copy_async(shared_address(to), from);
  *reinterpret_cast<uint4*>(to) = uint4{};
}

// The thread's share of a chunk: elements from `first` on of the block's rows and outputs.
template <class T>
__device__ void fetch(const LinearGroup& group, const LinearProduct& p, int64_t rows, int64_t row, int column,
                      int first, Stage<T>& stage) {
  const bool aligned = reinterpret_cast<uintptr_t>(group.x) % 16 == 0 && group.x_step % 4 == 0;
  constexpr int kFours = T::kChunk / 4, kEights = T::kChunk / 8;
  for (int i = static_cast<int>(threadIdx.x); i < T::kRows * kFours; i += T::kThreads) {
    const int r = i / kFours, at = i % kFours * 4;
    const bool there = row + r < rows && first + at < group.in;
    fetch_four(&stage.x[r][at], group.x + (row + r) * group.x_step + first + at, there, aligned);
  }
  const auto* weight = reinterpret_cast<const Bf16*>(p.weight);
  for (int i = static_cast<int>(threadIdx.x); i < T::kOutputs * kEights; i += T::kThreads) {
    const int c = i / kEights, at = i % kEights * 8;
    const bool there = column + c < p.out && first + at < group.in;
    fetch_eight(&stage.weight[c][at], weight + int64_t{column + c} * group.in + first + at, there);
  }
}

template <class T>
__device__ inline Split load_rows(const Stage<T>& stage, int row, int at) {
  Split split;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x =
        *reinterpret_cast<const float2*>(&stage.x[row + lane_g() + i % 2 * 8][at + 2 * lane_t() + i / 2 * 8]);
    split.set(i, x.x, x.y);
  }
  return split;
}

// A warp's outputs: the sums of this quarter, and those of the quarters before it.
template <class T>
struct Sums {
  float quarter[T::kTilesM][T::kTilesN][4] = {}, total[T::kTilesM][T::kTilesN][4] = {};

  __device__ void end_quarter() {
#pragma unroll
    for (int m = 0; m < T::kTilesM; ++m) {
#pragma unroll
      for (int n = 0; n < T::kTilesN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[m][n][i] += quarter[m][n][i];
          quarter[m][n][i] = 0.0f;
        }
      }
    }
  }
};

// first: the chunk's first element in the rows.
template <class T>
__device__ inline void multiply_chunk(const Stage<T>& stage, int row, int column, int first, int quarter,
                                      Sums<T>& sums) {
#pragma unroll
  for (int at = 0; at < T::kChunk; at += kDepth) {
    if (first + at > 0 && (first + at) % quarter == 0) sums.end_quarter();
    Split x[T::kTilesM];
#pragma unroll
    for (int m = 0; m < T::kTilesM; ++m) x[m] = load_rows(stage, row + m * 16, at);
#pragma unroll
    for (int n = 0; n < T::kTilesN; ++n) {
      const Bf16* weight = &stage.weight[column + n * 8 + lane_g()][at + 2 * lane_t()];
      const auto b0 = *reinterpret_cast<const uint32_t*>(weight),
                 b1 = *reinterpret_cast<const uint32_t*>(weight + 8);
#pragma unroll
      for (int m = 0; m < T::kTilesM; ++m) add_product(sums.quarter[m][n], x[m], b0, b1);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads) multiply(const __grid_constant__ LinearGroup group) {
  __shared__ Stage<T> stages[T::kStages];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * T::kRows;
  const int column = static_cast<int>(blockIdx.y) * T::kOutputs;
  const LinearProduct& p = group.product[blockIdx.z];
  const int64_t rows = rows_of(group);
  count_product(group, p, rows);
  if (column >= p.out || row >= rows) return;
  const int warp_row = warp / T::kWarpsN * T::kTilesM * 16, warp_column = warp % T::kWarpsN * T::kTilesN * 8;
  const int chunks = (group.in + T::kChunk - 1) / T::kChunk;
  const auto fetch_next = [&](int chunk) {
    if (chunk < chunks) fetch(group, p, rows, row, column, chunk * T::kChunk, stages[chunk % T::kStages]);
    commit_copies();
  };
  for (int chunk = 0; chunk < T::kStages - 1; ++chunk) fetch_next(chunk);
  const int quarter = quarter_of(group.in);
  Sums<T> sums;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();  // everyone's share has arrived, and the stage before is read
    fetch_next(chunk + T::kStages - 1);
    multiply_chunk(stages[chunk % T::kStages], warp_row, warp_column, chunk * T::kChunk, quarter, sums);
  }
  sums.end_quarter();
#pragma unroll
  for (int m = 0; m < T::kTilesM; ++m) {
#pragma unroll
    for (int n = 0; n < T::kTilesN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_output(p, rows, row + warp_row + m * 16 + lane_g() + i / 2 * 8,
                     column + warp_column + n * 8 + 2 * lane_t() + i % 2, sums.total[m][n][i]);
      }
    }
  }
}

}  // namespace

bool takes_tensor_cores(DType dtype, const LinearGroup& group, int products) {
  const auto aligned = [](const LinearProduct& p) { return reinterpret_cast<uintptr_t>(p.weight) % 16 == 0; };
  return dtype == DType::kBF16 && group.in % 8 == 0 &&
         std::all_of(group.product, group.product + products, aligned);
}

void multiply_bf16(CudaBackend dev, const LinearGroup& group, int products) {
  const int out = widest(group, products);
  if (out == 0) return;
  const auto number = static_cast<unsigned int>(products);
  // Rows fastest: they share weights in the cache.
  if (group.rows <= kFewRows) {
    const dim3 grid(blocks_for(group.rows, kFewRows), blocks_for(out, kFewOutputs), number);
    multiply_few<<<grid, kQuarters * kWarp, 0, dev.handle.stream>>>(group);
  } else {
    const dim3 grid(blocks_for(group.rows, ManyRows::kRows), blocks_for(out, ManyRows::kOutputs), number);
    multiply<ManyRows><<<grid, ManyRows::kThreads, 0, dev.handle.stream>>>(group);
  }
  check_launch("linear (bf16)");
}

}  // namespace fathom
