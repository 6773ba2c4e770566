// Products with a few outputs, a router's: they read the rows once and write little, which cuBLASLt's kernels
// of this shape do at a fraction of the memory's speed. x, dx: f32 or bf16, sums in f32.
#include "ops/kernels/bf16.cuh"
#include "ops/kernels/warp_rows.cuh"
#include "ops/linear/linear_kernel.h"

namespace fathom {
namespace {

constexpr int64_t kPartRows = 256;  // of a block; the gradient of the weight has a part for each
constexpr int kJoinWarps = 32;

// kAt neighbouring elements.
template <int kAt>
struct Some {
  float at[kAt];
};
template <int kAt, class T>
__device__ Some<kAt> load_some(const T* from) {
  if constexpr (kAt == 4) {
    const float4 v = load_four(from);
    return {{v.x, v.y, v.z, v.w}};
  } else {
    return {{to_float(*from)}};
  }
}
template <int kAt, class T>
__device__ void store_some(T* to, const Some<kAt>& x) {
  if constexpr (kAt == 4) {
    store_four(to, float4{x.at[0], x.at[1], x.at[2], x.at[3]});
  } else {
    store(to, x.at[0]);
  }
}

template <class T>
struct NarrowRows {
  T* data;
  int64_t step;
  DeviceRows rows;
  int width;
  explicit NarrowRows(const Tensor& t)
      : data(const_cast<T*>(t.data<T>())),
        step(t.stride(0)),
        rows(rows_of(t, RowSet::all(t.dim(0)))),
        width(static_cast<int>(t.dim(1))) {}
};

// A warp per row. out: (rows, kOut)
template <int kOut, int kAt, class T>
__global__ void __launch_bounds__(kRowThreads)
    narrow_products(NarrowRows<const T> x, const float* weight, const float* bias, float* out) {
  const int64_t count = x.rows.count();
  for (int64_t row = first_row(); row < count; row += next_row()) {
    float sums[kOut] = {};
#pragma unroll 2
    for (int i = kAt * own_lane(); i < x.width; i += kAt * kWarp) {
      const Some<kAt> v = load_some<kAt>(x.data + row * x.step + i);
#pragma unroll
      for (int o = 0; o < kOut; ++o) {
        const Some<kAt> w = load_some<kAt>(weight + o * x.width + i);
#pragma unroll
        for (int j = 0; j < kAt; ++j) sums[o] = fmaf(v.at[j], w.at[j], sums[o]);
      }
    }
#pragma unroll
    for (int o = 0; o < kOut; ++o) {
      const float sum = warp_sum(sums[o]);
      if (own_lane() == o) out[row * kOut + o] = bias ? sum + bias[o] : sum;
    }
  }
}

// dx = dy W + beta · dx. A warp per row.
template <int kOut, int kAt, class T>
__global__ void __launch_bounds__(kRowThreads)
    narrow_dx(NarrowRows<T> dx, const int32_t* present, const float* dy, int64_t dy_step, const float* weight,
              float beta) {
  const int64_t count = present ? *present : dx.rows.capacity;
  for (int64_t row = first_row(); row < count; row += next_row()) {
    float d[kOut];
#pragma unroll
    for (int o = 0; o < kOut; ++o) d[o] = dy[row * dy_step + o];
#pragma unroll 2
    for (int i = kAt * own_lane(); i < dx.width; i += kAt * kWarp) {
      T* to = dx.data + row * dx.step + i;
      Some<kAt> sum{};
      if (beta != 0.0f) sum = load_some<kAt>(to);
#pragma unroll
      for (int j = 0; j < kAt; ++j) sum.at[j] *= beta;
#pragma unroll
      for (int o = 0; o < kOut; ++o) {
        const Some<kAt> w = load_some<kAt>(weight + o * dx.width + i);
#pragma unroll
        for (int j = 0; j < kAt; ++j) sum.at[j] = fmaf(d[o], w.at[j], sum.at[j]);
      }
      store_some<kAt>(to, sum);
    }
  }
}

// parts: (parts, kOut, width). A block: kPartRows rows, kAt · kWarp columns; a warp takes every kRowWarps-th
// row, then the warps in their order.
template <int kOut, int kAt, class T>
__global__ void __launch_bounds__(kRowThreads)
    narrow_dw_parts(NarrowRows<const T> x, const int32_t* present, const float* dy, int64_t dy_step,
                    float* parts) {
  __shared__ float sums[kRowWarps][kOut][kAt * kWarp];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kPartRows;
  const int64_t count = present ? *present : x.rows.capacity;
  const int64_t end = begin + kPartRows < count ? begin + kPartRows : count;
  const int first = static_cast<int>(blockIdx.y) * kAt * kWarp, column = first + kAt * own_lane();
  Some<kAt> part[kOut] = {};
  if (column < x.width) {
#pragma unroll 4
    for (int64_t row = begin + own_warp(); row < end; row += kRowWarps) {
      const Some<kAt> v = load_some<kAt>(x.data + row * x.step + column);
#pragma unroll
      for (int o = 0; o < kOut; ++o) {
        const float d = dy[row * dy_step + o];
#pragma unroll
        for (int j = 0; j < kAt; ++j) part[o].at[j] = fmaf(d, v.at[j], part[o].at[j]);
      }
    }
  }
#pragma unroll
  for (int o = 0; o < kOut; ++o)
#pragma unroll
    for (int j = 0; j < kAt; ++j) sums[own_warp()][o][kAt * own_lane() + j] = part[o].at[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kOut * kAt * kWarp; i += kRowThreads) {
    const int o = i / (kAt * kWarp), at = i % (kAt * kWarp);
    if (first + at >= x.width) continue;
    float sum = sums[0][o][at];
    for (int warp = 1; warp < kRowWarps; ++warp) sum += sums[warp][o][at];
    parts[(static_cast<int64_t>(blockIdx.x) * kOut + o) * x.width + first + at] = sum;
  }
}

// dw = Σ parts + beta · dw, kJoinWarps parts at a time for an element, in f64. A block: kWarp elements.
__global__ void join_narrow_parts(const float* parts, int64_t count, int64_t elements, float beta,
                                  float* dw) {
  __shared__ double sums[kJoinWarps][kWarp];
  const int64_t element = static_cast<int64_t>(blockIdx.x) * kWarp + own_lane();
  double sum = 0.0;
  if (element < elements)
    for (int64_t p = own_warp(); p < count; p += kJoinWarps)
      sum += static_cast<double>(parts[p * elements + element]);
  sums[own_warp()][own_lane()] = sum;
  __syncthreads();
  if (own_warp() > 0 || element >= elements) return;
  for (int other = 1; other < kJoinWarps; ++other) sum += sums[other][own_lane()];
  const auto all = static_cast<float>(sum);
  dw[element] = beta == 0.0f ? all : fmaf(beta, dw[element], all);
}

template <int kCount>
struct Number {
  static constexpr int value = kCount;
};

// fn(outputs, elements at once, an element's type): what a kernel for these operands is made for.
template <class Fn>
void with_kinds(int64_t outputs, bool fours, bool bf16, Fn&& fn) {
  const auto with_type = [&](auto out, auto at) { bf16 ? fn(out, at, Bf16{}) : fn(out, at, float{}); };
  const auto with_fours = [&](auto out) {
    fours ? with_type(out, Number<4>{}) : with_type(out, Number<1>{});
  };
  outputs == 1 ? with_fours(Number<1>{}) : with_fours(Number<2>{});
}

}  // namespace

void narrow_products_kernel(CudaBackend cuda, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            Tensor& out) {
  with_kinds(weight.dim(0), in_fours(x) && in_fours(weight), x.dtype() == DType::kBF16,
             [&](auto outputs, auto at, auto type) {
               using T = decltype(type);
               narrow_products<outputs.value, at.value, T>
                   <<<row_blocks(x.dim(0)), kRowThreads, 0, cuda.handle.stream>>>(
                       NarrowRows<const T>(x), weight.data<float>(), bias ? bias.data<float>() : nullptr,
                       out.data<float>());
             });
  check_launch("linear (few outputs)");
}

void narrow_dx_kernel(CudaBackend cuda, const Tensor& dy, const Tensor& weight, float beta, Tensor& dx) {
  with_kinds(
      weight.dim(0), in_fours(dx) && in_fours(weight), dx.dtype() == DType::kBF16,
      [&](auto outputs, auto at, auto type) {
        using T = decltype(type);
        narrow_dx<outputs.value, at.value, T><<<row_blocks(dx.dim(0)), kRowThreads, 0, cuda.handle.stream>>>(
            NarrowRows<T>(dx), dy.row_count(), dy.data<float>(), dy.stride(0), weight.data<float>(), beta);
      });
  check_launch("the gradient of linear (few outputs)");
}

void narrow_dw_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, const Tensor& x, float beta,
                      Tensor& dw) {
  const int64_t outputs = dw.dim(0), width = dw.dim(1);
  const unsigned int parts = blocks_for(x.dim(0), kPartRows);
  const bool fours = in_fours(x);
  Tensor scratch = Tensor::empty(ctx, DType::kF32, {parts, outputs, width});
  if (parts > 0)
    with_kinds(outputs, fours, x.dtype() == DType::kBF16, [&](auto out, auto at, auto type) {
      using T = decltype(type);
      const dim3 grid(parts, blocks_for(width, at.value * kWarp));
      narrow_dw_parts<out.value, at.value, T><<<grid, kRowThreads, 0, cuda.handle.stream>>>(
          NarrowRows<const T>(x), dy.row_count(), dy.data<float>(), dy.stride(0), scratch.data<float>());
    });
  join_narrow_parts<<<blocks_for(outputs * width, kWarp), kJoinWarps * kWarp, 0, cuda.handle.stream>>>(
      scratch.data<float>(), parts, outputs * width, beta, dw.data<float>());
  check_launch("the gradient of linear (few outputs)");
}

}  // namespace fathom
