#include "ops/kernels/bf16.cuh"
#include "ops/kernels/elementwise.cuh"
#include "ops/rows/gated_activation.h"

namespace fathom {
namespace {

// σ(x). kFast: to some 2^-20, for what is rounded to bf16.
template <bool kFast>
__device__ float sigmoid(float x) {
  return kFast ? __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f / (1.0f + expf(-x));
}

template <bool kFast>
struct Silu {
  __device__ static float value(float g) { return kFast ? g * sigmoid<true>(g) : g / (1.0f + expf(-g)); }
  // silu(g) = g σ, silu'(g) = σ (1 + g (1 − σ))
  __device__ static float2 value_and_slope(float g) {
    const float s = sigmoid<kFast>(g);
    return {g * s, s * fmaf(g, 1.0f - s, 1.0f)};
  }
};

// GELU's tanh form: g / 2 · (1 + tanh(√(2/π) (g + 0.044715 g³)))
template <bool kFast>
struct Gelu {
  __device__ static float tanh(float x) {
    return kFast ? fmaf(2.0f, sigmoid<true>(2.0f * x), -1.0f) : tanhf(x);
  }
  __device__ static float value(float g) {
    return 0.5f * g * (1.0f + tanh(0.797884561f * fmaf(g * g * g, 0.044715f, g)));
  }
  // With t = tanh(inner): ½ (1 + t) + ½ g (1 − t²) inner', where 1 − t² is 0 long before |g| = 16.
  __device__ static float2 value_and_slope(float g) {
    const float c = fminf(fmaxf(g, -16.0f), 16.0f), square = c * c;
    const float t = tanh(0.797884561f * fmaf(square * c, 0.044715f, c)), high = 0.5f * (1.0f + t);
    const float steep = 0.5f * c * ((1.0f - t * t) * (0.797884561f * fmaf(square, 0.134145f, 1.0f)));
    return {g * high, high + steep};
  }
};

template <class Act>
struct Product {
  __device__ float operator()(float g, float u) const { return Act::value(g) * u; }
};

// The gradients of gate and up.
template <class Act>
struct ProductGradient {
  __device__ float2 operator()(float g, float u, float d) const {
    const float2 act = Act::value_and_slope(g);
    return {d * u * act.y, d * act.x};
  }
};

// bf16, in training alone, where the products before have asked how many rows there are: a thread has eight
// neighbouring elements of a row. Rows of every operand may stand apart.
constexpr int kThreads = 128;
struct Bf16Rows {
  Bf16* data;
  int64_t step;
  explicit Bf16Rows(const Tensor& t) : data(const_cast<Bf16*>(t.data<Bf16>())), step(t.stride(0)) {}
  __device__ Bf16* at(int64_t row, int64_t column) const { return data + row * step + column; }
};

// The thread's row and first column, or none.
struct EightOfRow {
  int64_t row, column;
  bool there;
  __device__ EightOfRow(int64_t rows, int64_t width) {
    // There is no memory for 2^32 of them.
    const uint32_t unit = blockIdx.x * kThreads + threadIdx.x, per_row = static_cast<uint32_t>(width / 8);
    row = unit / per_row;
    column = unit % per_row * 8;
    there = row < rows;
  }
};

template <class Act>
__global__ void activate_bf16(int64_t rows, int64_t width, Bf16Rows gate, Bf16Rows up, Bf16Rows out) {
  const EightOfRow mine(rows, width);
  if (!mine.there) return;
  const EightFloats g = load_eight_floats(gate.at(mine.row, mine.column)),
                    u = load_eight_floats(up.at(mine.row, mine.column));
  EightFloats y;
#pragma unroll
  for (int i = 0; i < 8; ++i) y.at[i] = Act::value(g.at[i]) * u.at[i];
  store_eight(out.at(mine.row, mine.column), y);
}

// kAgain: and the product again.
template <class Act, bool kAgain>
__global__ void activate_bf16_gradient(int64_t rows, int64_t width, Bf16Rows gate, Bf16Rows up, Bf16Rows d,
                                       Bf16Rows d_gate, Bf16Rows d_up, Bf16Rows again) {
  const EightOfRow mine(rows, width);
  if (!mine.there) return;
  const EightFloats g = load_eight_floats(gate.at(mine.row, mine.column)),
                    u = load_eight_floats(up.at(mine.row, mine.column)),
                    from = load_eight_floats(d.at(mine.row, mine.column));
  EightFloats dg, du, y;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 act = Act::value_and_slope(g.at[i]);
    dg.at[i] = from.at[i] * u.at[i] * act.y;
    du.at[i] = from.at[i] * act.x;
    y.at[i] = act.x * u.at[i];
  }
  store_eight(d_gate.at(mine.row, mine.column), dg);
  store_eight(d_up.at(mine.row, mine.column), du);
  if (kAgain) store_eight(again.at(mine.row, mine.column), y);
}

unsigned int bf16_blocks(int64_t rows, int64_t width) {
  return blocks_for(rows * (width / 8), kThreads);
}

template <bool kFast, class Fn>
void with_activation(Activation activation, Fn&& fn) {
  if (activation == Activation::kSilu) return fn(Silu<kFast>{});
  return fn(Gelu<kFast>{});
}

}  // namespace

void gated_activation_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out) {
  if (out.numel() == 0) return;
  if (out.dtype() == DType::kF32)
    return with_activation<false>(activation, [&](auto act) {
      map_rows(dev, "gated_activation", out.data<float>(), Product<decltype(act)>{}, DeviceFloatRows(gate),
               DeviceFloatRows(up));
    });
  const int64_t rows = present_rows(dev, gate);
  if (rows == 0) return;
  with_activation<true>(activation, [&](auto act) {
    activate_bf16<decltype(act)><<<bf16_blocks(rows, out.dim(1)), kThreads, 0, dev.handle.stream>>>(
        rows, out.dim(1), Bf16Rows(gate), Bf16Rows(up), Bf16Rows(out));
    check_launch("gated_activation");
  });
}

void gated_activation_gradient_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up,
                                      Tensor& again) {
  constexpr const char* kOp = "the gradient of gated_activation";
  if (gate.numel() == 0) return;
  if (gate.dtype() == DType::kF32)
    return with_activation<false>(activation, [&](auto act) {
      map_rows_to_two(dev, kOp, d_gate.data<float>(), d_up.data<float>(), ProductGradient<decltype(act)>{},
                      DeviceFloatRows(gate), DeviceFloatRows(up), DeviceFloatRows(d));
    });
  const int64_t rows = present_rows(dev, gate);
  if (rows == 0) return;
  with_activation<true>(activation, [&](auto act) {
    using Act = decltype(act);
    const auto kernel = again ? activate_bf16_gradient<Act, true> : activate_bf16_gradient<Act, false>;
    kernel<<<bf16_blocks(rows, gate.dim(1)), kThreads, 0, dev.handle.stream>>>(
        rows, gate.dim(1), Bf16Rows(gate), Bf16Rows(up), Bf16Rows(d), Bf16Rows(d_gate), Bf16Rows(d_up),
        Bf16Rows(again ? again : d));
    check_launch(kOp);
  });
}

}  // namespace fathom
