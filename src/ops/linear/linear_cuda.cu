// A warp computes R rows by C outputs: lane l adds up the products of elements l, l + 32, …, ascending, and
// the lanes' sums are added in the one order of warp.cuh. Neither R nor C changes an output's order, so a
// row's bits do not depend on how many rows there are. Weights are decoded to f32 where they are used;
// products and sums are f32 for every format.
#include "ops/kernels/warp.cuh"
#include "ops/kernels/weight_formats.cuh"
#include "ops/linear/linear_cuda.cuh"

namespace fathom {
namespace {

constexpr int kWarps = 8;  // of a thread block: the same rows, neighbouring outputs

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

template <class Format, int R, int C>
__global__ void __launch_bounds__(kWarps* kWarp) multiply(const __grid_constant__ LinearGroup group) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * R;
  const int column = (static_cast<int>(blockIdx.y) * kWarps + warp) * C;
  const LinearProduct& p = group.product[blockIdx.z];
  const int64_t rows = rows_of(group);
  count_product(group, p, rows);
  if (column >= p.out || row >= rows) return;
  // Rows and outputs past the end repeat the last one and are not stored.
  const float* x[R];
  const uint8_t* w[C];
#pragma unroll
  for (int r = 0; r < R; ++r) x[r] = group.x + (row + r < rows ? row + r : rows - 1) * group.x_step;
#pragma unroll
  for (int c = 0; c < C; ++c)
    w[c] = p.weight + (column + c < p.out ? column + c : p.out - 1) * group.weight_bytes;
  float sums[R * C] = {};
  const int whole = group.in / kWarp;
#pragma unroll(C == 1 ? 8 : 1)
  for (int index = 0; index < whole; ++index) add_products<Format, R, C>(x, w, index, lane, sums);
  if (lane < group.in % kWarp) add_products<Format, R, C>(x, w, whole, lane, sums);
  __syncwarp();
  if constexpr (R * C == kWarp) {
    const float sum = warp_sums(sums);
    store_output(p, rows, row + lane / C, column + lane % C, sum);
  } else {
#pragma unroll
    for (int i = 0; i < R * C; ++i) {
      const float sum = warp_sum(sums[i]);
      if (lane == i) store_output(p, rows, row + i / C, column + i % C, sum);
    }
  }
}

template <class Format, int R, int C>
void launch(CudaBackend dev, const LinearGroup& group, int products) {
  const int out = widest(group, products);
  if (out == 0) return;
  // Rows fastest: they share weights in the cache.
  const dim3 grid(blocks_for(group.rows, R), blocks_for(out, kWarps * C),
                  static_cast<unsigned int>(products));
  multiply<Format, R, C><<<grid, kWarps * kWarp, 0, dev.handle.stream>>>(group);
}

}  // namespace

void linear_kernel(CudaBackend cuda, Context&, const LinearCall& call) {
  const int64_t rows = call.x.dim(0), in = call.x.dim(1);
  if (rows == 0) return;
  for (size_t first = 0; first < call.weights.size();) {
    const DType dtype = call.weights[first].dtype();
    LinearGroup group{call.x.data<float>(),
                      rows,
                      call.x.stride(0),
                      call.x.row_count(),
                      static_cast<int>(in),
                      row_bytes(dtype, in),
                      call.x.row_count() ? device_work(cuda) : nullptr,
                      {}};
    int products = 0;
    size_t i = first;
    for (; i < call.weights.size() && call.weights[i].dtype() == dtype; ++i) {
      const Tensor& w = call.weights[i];
      const bool with_bias = !call.biases.empty() && call.biases[i];
      group.product[products++] = {w.data<uint8_t>(), with_bias ? call.biases[i].data<float>() : nullptr,
                                   call.outputs[i].data<float>(), static_cast<int>(w.dim(0))};
      if (group.work) continue;
      cuda.counters.add({.madds = static_cast<uint64_t>(rows * in * w.dim(0)),
                         .weight_bytes = static_cast<uint64_t>(w.nbytes())});
    }
    first = i;
    if (takes_tensor_cores(dtype, group, products)) {
      multiply_bf16(cuda, group, products);
      continue;
    }
    with_format(dtype, [&](auto format) {
      using Format = decltype(format);
      if (rows == 1) return launch<Format, 1, 1>(cuda, group, products);
      if (rows <= 8) return launch<Format, 8, 1>(cuda, group, products);
      return launch<Format, 8, 4>(cuda, group, products);
    });
    check_launch("linear");
  }
}

}  // namespace fathom
