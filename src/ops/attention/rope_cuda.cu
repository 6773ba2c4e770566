#include "ops/attention/rope.h"
#include "ops/kernels/bf16.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

struct RopeCall {
  const void* x;
  const int32_t* positions;
  const float* inverse_frequency;
  int64_t x_step, out_step;  // elements from a row to the next
  int heads, half;
  const int32_t* count;  // rows that are there; null: all
  RopeParams params;
  float direction;  // 1, or −1 to turn back
  void* out;
};

// The cosine and the sine of pair i of a row. The angle is a product of floats, as on the CPU.
__device__ float2 turn(const RopeCall& call, int64_t row, int i) {
  const float angle = static_cast<float>(call.positions[row]) * call.inverse_frequency[i];
  return {cosf(angle) * call.params.magnitude, sinf(angle) * call.params.magnitude * call.direction};
}

// A block per row: its angles once, then a thread per rotated pair of every head.
template <class T>
__global__ void rotate_rows(RopeCall call) {
  __shared__ float2 turns[kMaxRopeDim / 2];
  const int64_t row = blockIdx.x;
  if (call.count && row >= *call.count) return;
  for (int i = static_cast<int>(threadIdx.x); i < call.half; i += kThreads) turns[i] = turn(call, row, i);
  __syncthreads();
  const T* from = static_cast<const T*>(call.x) + row * call.x_step;
  T* to = static_cast<T*>(call.out) + row * call.out_step;
  const bool halves = call.params.style == RopeStyle::kHalves;
  for (int pair = static_cast<int>(threadIdx.x); pair < call.heads * call.half; pair += kThreads) {
    const int head = pair / call.half, i = pair % call.half;
    const int first = head * 2 * call.half + (halves ? i : 2 * i), second = first + (halves ? call.half : 1);
    const float a = to_float(from[first]), b = to_float(from[second]);
    const auto [c, s] = turns[i];
    store(to + first, a * c - b * s);
    store(to + second, b * c + a * s);
  }
}

// cos x and sin x to some 2^-20, for |x| up to some millions: x less the nearest multiple of 2π, in two
// steps.
__device__ float2 fast_turn(float x) {
  constexpr float kHigh = 6.28125f, kLow = 1.93530717958647692e-3f;  // 2π; products with kHigh are exact
  const float turns = rintf(x * 0.159154943091895336f);
  const float rest = fmaf(turns, -kLow, fmaf(turns, -kHigh, x));
  return {__cosf(rest), __sinf(rest)};
}

// Halves in bf16, in training alone, where the product before has asked how many rows there are: a thread
// turns eight neighbouring pairs of a row's head.
__global__ void rotate_eights(RopeCall call, int64_t rows) {
  const uint32_t unit = blockIdx.x * kThreads + threadIdx.x;  // there is no memory for 2^32 of them
  const auto per_head = static_cast<uint32_t>(call.half / 8),
             per_row = per_head * static_cast<uint32_t>(call.heads);
  const int64_t row = unit / per_row;
  if (row >= rows) return;
  const uint32_t left = unit % per_row, i = left % per_head * 8;
  const int64_t at = static_cast<int64_t>(left / per_head) * 2 * call.half + i;
  const Bf16* from = static_cast<const Bf16*>(call.x) + row * call.x_step + at;
  Bf16* to = static_cast<Bf16*>(call.out) + row * call.out_step + at;
  const EightFloats a = load_eight_floats(from), b = load_eight_floats(from + call.half),
                    frequency = load_eight_floats(call.inverse_frequency + i);
  const auto position = static_cast<float>(call.positions[row]);
  EightFloats first, second;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 turned = fast_turn(position * frequency.at[j]);
    const float c = turned.x * call.params.magnitude, s = turned.y * call.params.magnitude * call.direction;
    first.at[j] = a.at[j] * c - b.at[j] * s;
    second.at[j] = b.at[j] * c + a.at[j] * s;
  }
  store_eight(to, first);
  store_eight(to + call.half, second);
}

bool takes_eights(const Tensor& x, const Tensor& out, RopeParams params) {
  return x.dtype() == DType::kBF16 && params.style == RopeStyle::kHalves && x.dim(2) % 16 == 0 &&
         x.stride(0) % 8 == 0 && out.stride(0) % 8 == 0;
}

void turn_rows(CudaBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
               RopeParams params, float direction, Tensor& out) {
  if (x.numel() == 0) return;
  const RopeCall call{x.raw(),
                      positions.data<int32_t>(),
                      inverse_frequency.data<float>(),
                      x.stride(0),
                      out.stride(0),
                      static_cast<int>(x.dim(1)),
                      static_cast<int>(x.dim(2) / 2),
                      x.row_count(),
                      params,
                      direction,
                      out.raw()};
  const auto blocks = static_cast<unsigned int>(x.dim(0));
  if (takes_eights(x, out, params)) {
    const int64_t rows = present_rows(dev, x), eights = rows * x.dim(1) * (x.dim(2) / 16);
    if (rows == 0) return;
    rotate_eights<<<blocks_for(eights, kThreads), kThreads, 0, dev.handle.stream>>>(call, rows);
  } else if (x.dtype() == DType::kBF16) {
    rotate_rows<Bf16><<<blocks, kThreads, 0, dev.handle.stream>>>(call);
  } else {
    rotate_rows<float><<<blocks, kThreads, 0, dev.handle.stream>>>(call);
  }
  check_launch("rope");
}

}  // namespace

void rope_kernel(CudaBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
                 RopeParams params, Tensor& out) {
  turn_rows(dev, x, positions, inverse_frequency, params, 1.0f, out);
}

void rope_gradient_kernel(CudaBackend dev, const Tensor& d, const Tensor& positions,
                          const Tensor& inverse_frequency, RopeParams params, Tensor& dx) {
  turn_rows(dev, d, positions, inverse_frequency, params, -1.0f, dx);
}

}  // namespace fathom
