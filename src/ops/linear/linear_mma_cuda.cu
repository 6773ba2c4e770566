// Products of inference with bf16 weights, on tensor cores. An activation is the sum of two bf16 numbers,
// which hold 16 bits of it, so a product is as good as f32 arithmetic nearly makes it. The order of an
// output's sum is fixed: quarters of the row, each 16 elements at a time, ascending, then the quarters' sums
// in order. Few rows (decoding) and small products have a warp for each quarter, large ones have one warp for
// all, and a row's bits do not depend on which.
#include <algorithm>

#include "ops/kernels/bf16.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/linear/linear_cuda.cuh"

namespace fathom {
namespace {

constexpr int kDepth = 16;  // elements of a row that one instruction multiplies
constexpr int kQuarters = 4;
constexpr unsigned int kBusyBlocks = 512;  // large tiles alone keep a GPU busy from here on

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

// Few rows and some rows: a thread block computes kTilesM × 16 rows by kTilesN × 8 outputs, each of its warps
// a quarter of all their sums. A warp loads what kAhead instructions multiply before the first of them: the
// loads wait for each other's memory no more than once.
template <int kTilesM_, int kTilesN_, int kAhead_>
struct QuarterTile {
  static constexpr int kTilesM = kTilesM_, kTilesN = kTilesN_, kAhead = kAhead_;
  static constexpr int kRows = kTilesM * 16, kOutputs = kTilesN * 8, kThreads = kQuarters * kWarp;
};
using FewRows = QuarterTile<1, 1, 6>;
using SomeRows = QuarterTile<2, 4, 2>;

// The operands of one step along the rows.
template <class T>
struct QuarterStep {
  float2 x[T::kTilesM][4];
  uint32_t weight[T::kTilesN][2];

  // whole: otherwise the rows have eight more elements and not sixteen.
  __device__ void load(const float* const (&rows)[2 * T::kTilesM], const Bf16* const (&weights)[T::kTilesN],
                       int at, bool whole) {
#pragma unroll
    for (int m = 0; m < T::kTilesM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[m][i] = i < 2 || whole ? *reinterpret_cast<const float2*>(rows[2 * m + i % 2] + at + i / 2 * 8)
                                 : float2{0.0f, 0.0f};
      }
    }
#pragma unroll
    for (int n = 0; n < T::kTilesN; ++n) {
      weight[n][0] = *reinterpret_cast<const uint32_t*>(weights[n] + at);
      weight[n][1] = whole ? *reinterpret_cast<const uint32_t*>(weights[n] + at + 8) : 0;
    }
  }

  __device__ void multiply(float (&sums)[T::kTilesM][T::kTilesN][4]) const {
#pragma unroll
    for (int m = 0; m < T::kTilesM; ++m) {
      Split split;
#pragma unroll
      for (int i = 0; i < 4; ++i) split.set(i, x[m][i].x, x[m][i].y);
#pragma unroll
      for (int n = 0; n < T::kTilesN; ++n) add_product(sums[m][n], split, weight[n][0], weight[n][1]);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) multiply_quarters(const __grid_constant__ LinearGroup group) {
  __shared__ float partial[kQuarters][T::kRows][T::kOutputs];
  const int g = lane_g(), t = lane_t(), quarter = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * T::kRows;
  const int column = static_cast<int>(blockIdx.y) * T::kOutputs;
  const LinearProduct& p = group.product[blockIdx.z];
  const int64_t rows = rows_of(group);
  count_product(group, p, rows);
  if (column >= p.out || row >= rows) return;
  // Rows and outputs past the end repeat the last one and are not stored.
  const float* x[2 * T::kTilesM];
#pragma unroll
  for (int i = 0; i < 2 * T::kTilesM; ++i) {
    const int64_t r = row + g + 8 * i;
    x[i] = group.x + (r < rows ? r : rows - 1) * group.x_step + 2 * t;
  }
  const Bf16* weight[T::kTilesN];
#pragma unroll
  for (int n = 0; n < T::kTilesN; ++n) {
    const int c = column + n * 8 + g < p.out ? column + n * 8 + g : p.out - 1;
    weight[n] = reinterpret_cast<const Bf16*>(p.weight) + int64_t{c} * group.in + 2 * t;
  }
  const int first = quarter * quarter_of(group.in), end = min(first + quarter_of(group.in), group.in);
  float sums[T::kTilesM][T::kTilesN][4] = {};
  for (int at = first; at < end; at += T::kAhead * kDepth) {
    QuarterStep<T> steps[T::kAhead];
#pragma unroll
    for (int i = 0; i < T::kAhead; ++i) {
      const int here = at + i * kDepth;
      if (here < end) steps[i].load(x, weight, here, here + kDepth <= group.in);
    }
#pragma unroll
    for (int i = 0; i < T::kAhead; ++i) {
      if (at + i * kDepth < end) steps[i].multiply(sums);
    }
  }
#pragma unroll
  for (int m = 0; m < T::kTilesM; ++m) {
#pragma unroll
    for (int n = 0; n < T::kTilesN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        partial[quarter][m * 16 + g + i / 2 * 8][n * 8 + 2 * t + i % 2] = sums[m][n][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < T::kRows * T::kOutputs; i += T::kThreads) {
    const int r = i / T::kOutputs, o = i % T::kOutputs;
    float total = 0.0f;
#pragma unroll
    for (int q = 0; q < kQuarters; ++q) total += partial[q][r][o];
    store_output(p, rows, row + r, column + o, total);
  }
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
  const auto grid = [&](int rows, int outputs) {  // rows fastest: they share weights in the cache
    return dim3(blocks_for(group.rows, rows), blocks_for(out, outputs), static_cast<unsigned int>(products));
  };
  const dim3 many = grid(ManyRows::kRows, ManyRows::kOutputs);
  const bool in_pairs = reinterpret_cast<uintptr_t>(group.x) % sizeof(float2) == 0 && group.x_step % 2 == 0;
  if (in_pairs && group.rows <= FewRows::kRows) {
    multiply_quarters<FewRows>
        <<<grid(FewRows::kRows, FewRows::kOutputs), FewRows::kThreads, 0, dev.handle.stream>>>(group);
  } else if (in_pairs && many.x * many.y * many.z < kBusyBlocks) {
    multiply_quarters<SomeRows>
        <<<grid(SomeRows::kRows, SomeRows::kOutputs), SomeRows::kThreads, 0, dev.handle.stream>>>(group);
  } else {
    multiply<ManyRows><<<many, ManyRows::kThreads, 0, dev.handle.stream>>>(group);
  }
  check_launch("linear (bf16)");
}

}  // namespace fathom
