// rms_norm with a result in bf16: a warp for a row. The gradient of a row and the row's part of the weight's
// gradient come from one pass over its elements.
#include "ops/kernels/bf16.cuh"
#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/rows/rms_norm.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int64_t kPartRows = 32;  // of a block; the weight's gradient has a part for each block
constexpr int kStep = 4 * kWarp;   // elements that a warp takes at once

__device__ int lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ int warp() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

// Rows that are whole fours of elements: step and width divide by four.
__device__ float4 four(const float* row, int i) {
  return *reinterpret_cast<const float4*>(row + i);
}
__device__ float4 weight_at(const float* weight, int i, float offset) {
  const float4 w = four(weight, i);
  return {w.x + offset, w.y + offset, w.z + offset, w.w + offset};
}

__global__ void norm_rows(DeviceFloatRows x, const float* weight, RmsNormParams params, Bf16* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (!x.has(row)) return;
  const float* in = x.data + row * x.step;
  const int width = static_cast<int>(x.width);
  float sum = 0.0f;
  for (int i = 4 * lane(); i < width; i += kStep) {
    const float4 v = four(in, i);
    sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
  }
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(width) + params.eps);
  for (int i = 4 * lane(); i < width; i += kStep) {
    const float4 v = four(in, i), w = weight_at(weight, i, params.weight_offset);
    store_four(out + row * x.width + i,
               {v.x * inverse * w.x, v.y * inverse * w.y, v.z * inverse * w.z, v.w * inverse * w.w});
  }
}

struct GradientCall {
  DeviceFloatRows x;
  const float* weight;
  RmsNormParams params;
  const Bf16* d;         // dense
  const float* arrived;  // dense; null: nothing
  float* dx;             // dense; null: not wanted
  float* parts;          // (blocks, width); null: not wanted
};

// With w = weight + offset and i = 1 / sqrt(mean(x²) + eps): dx = i · w · d − x · i³ / n · Σ w d x. The
// weight's gradient adds up in the lanes' registers (kSteps · 4 columns each), then over the warps in their
// order.
template <int kSteps>
__global__ void __launch_bounds__(kThreads) gradients_of_rows(GradientCall call) {
  __shared__ alignas(16) float sums[kSteps * kStep];  // written in fours
  const DeviceFloatRows& x = call.x;
  const int width = static_cast<int>(x.width);
  float4 part[kSteps] = {};
  for (int64_t r = warp(); r < kPartRows; r += kWarps) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * kPartRows + r;
    if (!x.has(row)) break;
    const float* in = x.data + row * x.step;
    const Bf16* from = call.d + row * x.width;
    float square = 0.0f, along = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = s * kStep + 4 * lane();
      if (i >= width) break;
      const float4 v = four(in, i), d = load_four(from + i),
                   w = weight_at(call.weight, i, call.params.weight_offset);
      square = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, square))));
      along = fmaf(w.x * d.x, v.x, fmaf(w.y * d.y, v.y, fmaf(w.z * d.z, v.z, fmaf(w.w * d.w, v.w, along))));
    }
    const float n = static_cast<float>(width);
    const float inverse = 1.0f / sqrtf(warp_sum(square) / n + call.params.eps);
    const float back = -warp_sum(along) / n * inverse * inverse * inverse;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = s * kStep + 4 * lane();
      if (i >= width) break;
      const float4 v = four(in, i), d = load_four(from + i),
                   w = weight_at(call.weight, i, call.params.weight_offset);
      part[s].x = fmaf(v.x * inverse, d.x, part[s].x);
      part[s].y = fmaf(v.y * inverse, d.y, part[s].y);
      part[s].z = fmaf(v.z * inverse, d.z, part[s].z);
      part[s].w = fmaf(v.w * inverse, d.w, part[s].w);
      if (!call.dx) continue;
      const int64_t at = row * x.width + i;
      float4 sum = call.arrived ? *reinterpret_cast<const float4*>(call.arrived + at) : float4{};
      sum.x += fmaf(v.x, back, d.x * w.x * inverse);
      sum.y += fmaf(v.y, back, d.y * w.y * inverse);
      sum.z += fmaf(v.z, back, d.z * w.z * inverse);
      sum.w += fmaf(v.w, back, d.w * w.w * inverse);
      *reinterpret_cast<float4*>(call.dx + at) = sum;
    }
  }
  if (!call.parts) return;
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp() == turn) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        float4& to = *reinterpret_cast<float4*>(sums + s * kStep + 4 * lane());
        to = turn == 0 ? part[s]
                       : float4{to.x + part[s].x, to.y + part[s].y, to.z + part[s].z, to.w + part[s].w};
      }
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads)
    call.parts[static_cast<int64_t>(blockIdx.x) * width + i] = sums[i];
}

// d_weight += the parts in their order, kWarps of them at a time for a column. A block: kWarp columns.
__global__ void add_parts(const float* parts, int64_t count, int64_t width, float* d_weight) {
  __shared__ double sums[kWarps][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane();
  double sum = 0.0;
  if (column < width) {
#pragma unroll 8
    for (int64_t p = warp(); p < count; p += kWarps) sum += static_cast<double>(parts[p * width + column]);
  }
  sums[warp()][lane()] = sum;
  __syncthreads();
  if (warp() > 0 || column >= width) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane()];
  d_weight[column] += static_cast<float>(sum);
}

template <int kSteps>
void launch(CudaBackend dev, const GradientCall& call, unsigned int blocks) {
  if (call.x.width > kSteps * kStep) {
    if constexpr (kSteps < 32) return launch<kSteps * 2>(dev, call, blocks);
  }
  gradients_of_rows<kSteps><<<blocks, kThreads, 0, dev.handle.stream>>>(call);
  check_launch("the gradient of rms_norm");
}

}  // namespace

void rms_norm_bf16_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight, RmsNormParams params,
                          Tensor& out) {
  const DeviceFloatRows rows(x);
  norm_rows<<<blocks_for(rows.rows, kWarps), kThreads, 0, dev.handle.stream>>>(rows, weight.data<float>(),
                                                                               params, out.data<Bf16>());
  check_launch("rms_norm");
}

int64_t rms_norm_bf16_scratch(const Tensor& x) {
  const DeviceFloatRows rows(x);
  return static_cast<int64_t>(blocks_for(rows.rows, kPartRows)) * rows.width;
}

void rms_norm_bf16_gradient_kernel(CudaBackend dev, const Tensor& x, const Tensor& weight,
                                   RmsNormParams params, const Tensor& d, const Tensor& arrived, Tensor& dx,
                                   Tensor& scratch, Tensor& d_weight) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  const unsigned int blocks = blocks_for(rows.rows, kPartRows);
  launch<1>(dev,
            {rows, weight.data<float>(), params, d.data<Bf16>(), arrived ? arrived.data<float>() : nullptr,
             dx ? dx.data<float>() : nullptr, d_weight ? scratch.data<float>() : nullptr},
            blocks);
  if (!d_weight) return;
  add_parts<<<blocks_for(rows.width, kWarp), kThreads, 0, dev.handle.stream>>>(
      scratch.data<float>(), blocks, rows.width, d_weight.data<float>());
  check_launch("the gradient of rms_norm");
}

}  // namespace fathom
