// A warp computes R rows by C outputs: lane l adds up the products of elements l, l + 32, …, ascending, and
// the lanes' sums are added in the one order of warp.cuh. Neither R nor C changes an output's order, so a
// row's bits do not depend on how many rows there are. Weights are decoded to f32 where they are used;
// products and sums are f32 for every format.
#include <algorithm>

#include "ops/linear_kernel.h"
#include "ops/warp.cuh"
#include "ops/weight_formats.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kWarps = 8;  // of a thread block: the same rows, neighbouring outputs

struct Product {
  const float* x;
  int64_t rows, x_step;
  int in, out;
  const uint8_t* weight;
  int64_t weight_bytes;  // of a row
  const float* bias;     // null: none
  float* y;              // (rows, out)
};

template <class Format, int R, int C>
__device__ inline void add_products(const float* const (&x)[R], const uint8_t* const (&w)[C], int index,
                                    int lane, float (&sums)[R * C]) {
  float value[R];
#pragma unroll
  for (int r = 0; r < R; ++r) value[r] = x[r][index * kWarp + lane];
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float weight = Format::at(w[c], index, lane);
#pragma unroll
    for (int r = 0; r < R; ++r) sums[r * C + c] = fmaf(weight, value[r], sums[r * C + c]);
  }
}

__device__ inline void store_output(const Product& p, int64_t row, int column, float sum) {
  if (row < p.rows && column < p.out) p.y[row * p.out + column] = p.bias ? sum + p.bias[column] : sum;
}

template <class Format, int R, int C>
__global__ void __launch_bounds__(kWarps* kWarp) multiply(Product p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * R;
  const int column = (static_cast<int>(blockIdx.y) * kWarps + warp) * C;
  if (column >= p.out) return;
  // Rows and outputs past the end repeat the last one and are not stored.
  const float* x[R];
  const uint8_t* w[C];
#pragma unroll
  for (int r = 0; r < R; ++r) x[r] = p.x + (row + r < p.rows ? row + r : p.rows - 1) * p.x_step;
#pragma unroll
  for (int c = 0; c < C; ++c)
    w[c] = p.weight + (column + c < p.out ? column + c : p.out - 1) * p.weight_bytes;
  float sums[R * C] = {};
  const int whole = p.in / kWarp;
#pragma unroll(C == 1 ? 8 : 1)
  for (int index = 0; index < whole; ++index) add_products<Format, R, C>(x, w, index, lane, sums);
  if (lane < p.in % kWarp) add_products<Format, R, C>(x, w, whole, lane, sums);
  __syncwarp();
  if constexpr (R * C == kWarp) {
    const float sum = warp_sums(sums);
    store_output(p, row + lane / C, column + lane % C, sum);
  } else {
#pragma unroll
    for (int i = 0; i < R * C; ++i) {
      const float sum = warp_sum(sums[i]);
      if (lane == i) store_output(p, row + i / C, column + i % C, sum);
    }
  }
}

template <class Format, int R, int C>
void launch(CudaBackend dev, const Product& p) {
  const dim3 grid(blocks_for(p.rows, R),
                  blocks_for(p.out, kWarps * C));  // rows fastest: they share weights in the cache
  multiply<Format, R, C><<<grid, kWarps * kWarp, 0, dev.handle.stream>>>(p);
}

}  // namespace

void linear_kernel(CudaBackend cuda, Context&, const LinearCall& call) {
  const int64_t rows = call.x.dim(0), in = call.x.dim(1);
  if (rows == 0) return;
  for (size_t i = 0; i < call.weights.size(); ++i) {
    const Tensor& w = call.weights[i];
    if (w.dim(0) == 0) continue;
    const bool with_bias = !call.biases.empty() && call.biases[i];
    const Product product{call.x.data<float>(),
                          rows,
                          call.x.stride(0),
                          static_cast<int>(in),
                          static_cast<int>(w.dim(0)),
                          w.data<uint8_t>(),
                          row_bytes(w.dtype(), in),
                          with_bias ? call.biases[i].data<float>() : nullptr,
                          call.outputs[i].data<float>()};
    with_format(w.dtype(), [&](auto format) {
      using Format = decltype(format);
      if (rows == 1) return launch<Format, 1, 1>(cuda, product);
      if (rows <= 8) return launch<Format, 8, 1>(cuda, product);
      return launch<Format, 8, 4>(cuda, product);
    });
    check_launch("linear");
    cuda.counters.add({.madds = static_cast<uint64_t>(rows * in * w.dim(0)),
                       .weight_bytes = static_cast<uint64_t>(w.nbytes())});
  }
}

}  // namespace fathom
