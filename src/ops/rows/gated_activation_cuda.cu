#include "ops/kernels/bf16.cuh"
#include "ops/kernels/elementwise.cuh"
#include "ops/rows/gated_activation.h"

namespace fathom {
namespace {

struct SiluProduct {
  __device__ float operator()(float g, float u) const { return g / (1.0f + expf(-g)) * u; }
};

// GELU's tanh form: g / 2 · (1 + tanh(√(2/π) (g + 0.044715 g³)))
struct GeluProduct {
  __device__ float operator()(float g, float u) const {
    const float inner = 0.797884561f * fmaf(g * g * g, 0.044715f, g);
    return 0.5f * g * (1.0f + tanhf(inner)) * u;
  }
};

// The gradients of gate and up. silu(g) = g σ, silu'(g) = σ (1 + g (1 − σ))
struct SiluProductGradient {
  __device__ float2 operator()(float g, float u, float d) const {
    const float s = 1.0f / (1.0f + expf(-g));
    return {d * u * (s * fmaf(g, 1.0f - s, 1.0f)), d * (g * s)};
  }
};

// With t = tanh(inner): ½ (1 + t) + ½ g (1 − t²) inner', where 1 − t² is 0 long before |g| = 16.
struct GeluProductGradient {
  __device__ float2 operator()(float g, float u, float d) const {
    const float c = fminf(fmaxf(g, -16.0f), 16.0f), square = c * c;
    const float t = tanhf(0.797884561f * fmaf(square * c, 0.044715f, c)), high = 0.5f * (1.0f + t);
    const float steep = 0.5f * c * ((1.0f - t * t) * (0.797884561f * fmaf(square, 0.134145f, 1.0f)));
    return {d * u * (high + steep), d * (g * high)};
  }
};

// bf16: a thread has eight neighbouring elements of a row. Rows of every operand may stand apart.
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
  __device__ EightOfRow(int64_t rows, int64_t width, const int32_t* count) {
    const int64_t unit = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    row = unit / (width / 8);
    column = unit % (width / 8) * 8;
    there = row < (count ? *count : rows);
  }
};

template <class Fn>
__global__ void activate_bf16(int64_t rows, int64_t width, const int32_t* count, Bf16Rows gate, Bf16Rows up,
                              Fn fn, Bf16Rows out) {
  const EightOfRow mine(rows, width, count);
  if (!mine.there) return;
  const EightFloats g = load_eight_floats(gate.at(mine.row, mine.column)),
                    u = load_eight_floats(up.at(mine.row, mine.column));
  EightFloats y;
#pragma unroll
  for (int i = 0; i < 8; ++i) y.at[i] = fn(g.at[i], u.at[i]);
  store_eight(out.at(mine.row, mine.column), y);
}

template <class Fn>
__global__ void activate_bf16_gradient(int64_t rows, int64_t width, const int32_t* count, Bf16Rows gate,
                                       Bf16Rows up, Bf16Rows d, Fn fn, Bf16Rows d_gate, Bf16Rows d_up) {
  const EightOfRow mine(rows, width, count);
  if (!mine.there) return;
  const EightFloats g = load_eight_floats(gate.at(mine.row, mine.column)),
                    u = load_eight_floats(up.at(mine.row, mine.column)),
                    from = load_eight_floats(d.at(mine.row, mine.column));
  EightFloats dg, du;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float2 both = fn(g.at[i], u.at[i], from.at[i]);
    dg.at[i] = both.x;
    du.at[i] = both.y;
  }
  store_eight(d_gate.at(mine.row, mine.column), dg);
  store_eight(d_up.at(mine.row, mine.column), du);
}

unsigned int bf16_blocks(const Tensor& t) {
  return blocks_for(t.dim(0) * (t.dim(1) / 8), kThreads);
}

// act and its gradient for an activation: fn(product, gradient)
template <class Fn>
void with_activation(Activation activation, Fn&& fn) {
  if (activation == Activation::kSilu) return fn(SiluProduct{}, SiluProductGradient{});
  return fn(GeluProduct{}, GeluProductGradient{});
}

}  // namespace

void gated_activation_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up, Activation activation,
                             Tensor& out) {
  with_activation(activation, [&](auto product, auto) {
    if (out.dtype() == DType::kF32)
      return map_rows(dev, "gated_activation", out.data<float>(), product, DeviceFloatRows(gate),
                      DeviceFloatRows(up));
    if (out.numel() == 0) return;
    activate_bf16<<<bf16_blocks(out), kThreads, 0, dev.handle.stream>>>(
        out.dim(0), out.dim(1), out.row_count(), Bf16Rows(gate), Bf16Rows(up), product, Bf16Rows(out));
    check_launch("gated_activation");
  });
}

void gated_activation_gradient_kernel(CudaBackend dev, const Tensor& gate, const Tensor& up,
                                      Activation activation, const Tensor& d, Tensor& d_gate, Tensor& d_up) {
  constexpr const char* kOp = "the gradient of gated_activation";
  with_activation(activation, [&](auto, auto gradient) {
    if (gate.dtype() == DType::kF32)
      return map_rows_to_two(dev, kOp, d_gate.data<float>(), d_up.data<float>(), gradient,
                             DeviceFloatRows(gate), DeviceFloatRows(up), DeviceFloatRows(d));
    if (gate.numel() == 0) return;
    activate_bf16_gradient<<<bf16_blocks(gate), kThreads, 0, dev.handle.stream>>>(
        gate.dim(0), gate.dim(1), gate.row_count(), Bf16Rows(gate), Bf16Rows(up), Bf16Rows(d), gradient,
        Bf16Rows(d_gate), Bf16Rows(d_up));
    check_launch(kOp);
  });
}

}  // namespace fathom
