// rms_norm of kept rows with a result in bf16. A row is read once, into the registers of a team of warps. The
// gradient of a row and the row's part of the weight's gradient come from one reading of the result, which
// the product behind it holds anyway: x is not held. A router's product with the row, and all that its
// gradient needs, come from the same readings.
#include "ops/kernels/bf16.cuh"
#include "ops/kernels/warp_rows.cuh"
#include "ops/rows/rms_norm_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kSteps = 5, kMost = kSteps * kRowStep;  // elements that a warp has of a row
constexpr int64_t kBlocks = 264;  // of the gradient: two for each multiprocessor of an H200
constexpr int kJoinWarps = 32;

static_assert(kWidestBf16Norm <= kRowWarps * kMost);

// How a block's warps share rows: 1, 2, 4 or 8 of them are a team, and each of a team has `columns` elements.
struct Teams {
  int warps, columns;
  explicit Teams(int64_t width) : warps(1) {
    while (warps * kMost < width) warps *= 2;
    columns = static_cast<int>((width + 4 * warps - 1) / (4 * warps) * 4);
  }
  __host__ __device__ int count() const { return kRowWarps / warps; }
  __device__ int mine() const { return own_warp() / warps; }
  // Of the thread's first four elements in a row; the others are kRowStep apart, before end().
  __device__ int begin() const { return own_warp() % warps * columns + 4 * own_lane(); }
  __device__ int end(int width) const {
    const int end = (own_warp() % warps + 1) * columns;
    return end < width ? end : width;
  }
  // The sum over the team, for each of its threads. The block calls it together.
  __device__ float sum(float x) const {
    __shared__ float each[kRowWarps];
    x = warp_sum(x);
    if (warps == 1) return x;
    __syncthreads();  // an earlier sum's readers are done
    if (own_lane() == 0) each[own_warp()] = x;
    __syncthreads();
    x = 0.0f;
    for (int i = mine() * warps; i < (mine() + 1) * warps; ++i) x += each[i];
    return x;
  }
};

// A weight below 2^-60 counts as that: the gradient finds the normed row in the result.
__device__ float apart_from_zero(float w) {
  constexpr float kLeast = 8.673617379884035e-19f;
  return fabsf(w) < kLeast ? copysignf(kLeast, w) : w;
}
__device__ float4 weight_at(const float* weight, int i, float offset) {
  const float4 w = load_four(weight + i);
  return {apart_from_zero(w.x + offset), apart_from_zero(w.y + offset), apart_from_zero(w.z + offset),
          apart_from_zero(w.w + offset)};
}

// A router as kernels read it: of two rows, the second less the first.
struct DeviceRouter {
  const float *weight, *less;  // (width) each; less: null where there is one row
  explicit DeviceRouter(const Tensor& router)
      : weight(router.data<float>() + (router.dim(0) - 1) * router.dim(1)),
        less(router.dim(0) > 1 ? router.data<float>() : nullptr) {}
  DeviceRouter() : weight(nullptr), less(nullptr) {}
  __device__ float4 at(int i) const {
    const float4 w = load_four(weight + i);
    if (!less) return w;
    const float4 l = load_four(less + i);
    return {w.x - l.x, w.y - l.y, w.z - l.z, w.w - l.w};
  }
};

struct NormCall {
  DeviceRows rows;  // of x
  Teams teams;
  const float* x;
  int64_t step;
  int width;
  const float* weight;
  RmsNormParams params;
  Bf16* out;       // (rows, width)
  float* inverse;  // (rows): 1 / sqrt(mean(x²) + eps)
  DeviceRouter router = {};
  float* logit = nullptr;  // (rows): x · router
};

template <bool kRouted>
__global__ void __launch_bounds__(kRowThreads) norm_rows(NormCall call) {
  const Teams& teams = call.teams;
  const int begin = teams.begin(), columns_end = teams.end(call.width);
  const int64_t count = call.rows.count(), stride = static_cast<int64_t>(gridDim.x) * teams.count();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * teams.count(); first < count; first += stride) {
    const int64_t row = first + teams.mine();
    const int end = row < count ? columns_end : 0;
    const float* in = row < count ? call.x + call.rows[row] * call.step : nullptr;
    float4 v[kSteps];
    float square = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      v[s] = begin + s * kRowStep < end ? load_four(in + begin + s * kRowStep) : float4{};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) square = add_products(v[s], v[s], square);
    const float inverse = 1.0f / sqrtf(teams.sum(square) / static_cast<float>(call.width) + call.params.eps);
    if (begin == 0 && end > 0) call.inverse[row] = inverse;
    if constexpr (kRouted) {
      float along = 0.0f;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        if (begin + s * kRowStep < end)
          along = add_products(v[s], call.router.at(begin + s * kRowStep), along);
      along = teams.sum(along);
      if (begin == 0 && end > 0) call.logit[row] = along;
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = begin + s * kRowStep;
      if (i >= end) break;
      const float4 w = weight_at(call.weight, i, call.params.weight_offset);
      store_four(call.out + row * call.width + i, float4{v[s].x * inverse * w.x, v[s].y * inverse * w.y,
                                                         v[s].z * inverse * w.z, v[s].w * inverse * w.w});
    }
  }
}

struct GradientCall {
  DeviceRows rows;  // of dx
  Teams teams;
  int width;
  const float* weight;
  RmsNormParams params;
  const Bf16 *y, *d;     // (rows, width): the result and its gradient
  const float* inverse;  // (rows)
  const float* arrived;  // dense; null: nothing
  float* dx;             // dense; null: not wanted
  Bf16* rounded;         // dx in bf16; null: not wanted
  float* parts;          // (blocks, width); null: not wanted
};

// parts: each block's sums over its teams, in their order. Every team has the columns' sums in `part`.
__device__ void write_parts(const GradientCall& call, const float4 (&part)[kSteps], float* parts) {
  __shared__ alignas(16) float sums[kWidestBf16Norm];  // written in fours
  const int begin = call.teams.begin(), end = call.teams.end(call.width);
  __syncthreads();  // earlier parts have been read
  for (int turn = 0; turn < call.teams.count(); ++turn) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = begin + s * kRowStep;
      if (turn != call.teams.mine() || i >= end) break;
      store_four(sums + i, turn == 0 ? part[s] : sum_of(load_four(sums + i), part[s]));
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < call.width; i += kRowThreads)
    parts[static_cast<int64_t>(blockIdx.x) * call.width + i] = sums[i];
}

// With w = weight + offset, i = 1 / sqrt(mean(x²) + eps) and the normed row n = x i = y / w:
// dx = i (w d − n mean(d y)). The grid's teams take the rows in turn. The weight's gradient Σ d n adds up in
// their registers.
__global__ void __launch_bounds__(kRowThreads, 2) gradients_of_rows(GradientCall call) {
  const Teams& teams = call.teams;
  const int begin = teams.begin(), columns_end = teams.end(call.width);
  const int64_t count = call.rows.count(), stride = static_cast<int64_t>(gridDim.x) * teams.count();
  float4 part[kSteps] = {};
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * teams.count(); first < count; first += stride) {
    const int64_t row = first + teams.mine(), from = row * call.width;
    const int end = row < count ? columns_end : 0;
    const int64_t to = row < count ? call.rows[row] * call.width : 0;
    const float inverse = row < count ? call.inverse[row] : 0.0f;
    float4 y[kSteps], d[kSteps], sum[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = begin + s * kRowStep;
      const bool mine = i < end;
      y[s] = mine ? load_four(call.y + from + i) : float4{};
      d[s] = mine ? load_four(call.d + from + i) : float4{};
      sum[s] = mine && call.arrived ? load_four(call.arrived + to + i) : float4{};
    }
    float along = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) along = add_products(y[s], d[s], along);
    const float back = -teams.sum(along) / static_cast<float>(call.width) * inverse;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = begin + s * kRowStep;
      if (i >= end) break;
      const float4 w = weight_at(call.weight, i, call.params.weight_offset);
      const float4 n{__fdividef(y[s].x, w.x), __fdividef(y[s].y, w.y), __fdividef(y[s].z, w.z),
                     __fdividef(y[s].w, w.w)};
      part[s].x = fmaf(n.x, d[s].x, part[s].x);
      part[s].y = fmaf(n.y, d[s].y, part[s].y);
      part[s].z = fmaf(n.z, d[s].z, part[s].z);
      part[s].w = fmaf(n.w, d[s].w, part[s].w);
      if (!call.dx) continue;
      sum[s].x += fmaf(n.x, back, d[s].x * w.x * inverse);
      sum[s].y += fmaf(n.y, back, d[s].y * w.y * inverse);
      sum[s].z += fmaf(n.z, back, d[s].z * w.z * inverse);
      sum[s].w += fmaf(n.w, back, d[s].w * w.w * inverse);
      store_four(call.dx + to + i, sum[s]);
      if (call.rounded) store_four(call.rounded + to + i, sum[s]);
    }
  }
  if (call.parts) write_parts(call, part, call.parts);
}

struct RoutedGradientCall {
  GradientCall norm;
  DeviceRouter router;
  const float* d_logit;  // (rows); null: 0
  const float* ran;      // (rows): 1, or 0 where it is 1 − p that scales the row
  float* d_p;            // (rows): ±⟨dx, x⟩; null: not wanted
  float* parts;          // (blocks, width): Σ d_logit · x; null: not wanted
};

// Four elements of a row in bf16, as they lie in memory: half the registers.
__device__ uint2 load_four_packed(const Bf16* from) {
  return *reinterpret_cast<const uint2*>(from);
}
__device__ float4 unpack_four(uint2 x) {
  return {unpack_bf16(x.x, 0), unpack_bf16(x.x, 1), unpack_bf16(x.y, 0), unpack_bf16(x.y, 1)};
}

// The same, with the router's gradient in it: x = n / i, and dx also gets d_logit · router. Every row is
// there, and dx is wanted.
__global__ void __launch_bounds__(kRowThreads, 2) gradients_of_routed_rows(RoutedGradientCall routed) {
  const GradientCall& call = routed.norm;
  const Teams& teams = call.teams;
  const int begin = teams.begin(), columns_end = teams.end(call.width);
  const int64_t count = call.rows.count(), stride = static_cast<int64_t>(gridDim.x) * teams.count();
  float4 part[kSteps] = {}, router_part[kSteps] = {};
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * teams.count(); first < count; first += stride) {
    const int64_t row = first + teams.mine(), from = row * call.width;
    const int end = row < count ? columns_end : 0;
    const float inverse = row < count ? call.inverse[row] : 1.0f;
    const float d_logit = routed.d_logit && row < count ? routed.d_logit[row] : 0.0f;
    uint2 y[kSteps], d[kSteps];
    float4 sum[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = begin + s * kRowStep;
      const bool mine = i < end;
      y[s] = mine ? load_four_packed(call.y + from + i) : uint2{};
      d[s] = mine && call.d ? load_four_packed(call.d + from + i) : uint2{};
      sum[s] = mine && call.arrived ? load_four(call.arrived + from + i) : float4{};
    }
    float along = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) along = add_products(unpack_four(y[s]), unpack_four(d[s]), along);
    const float back = -teams.sum(along) / static_cast<float>(call.width) * inverse;
    const float d_row = d_logit / inverse;
    float factor = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int i = begin + s * kRowStep;
      if (i >= end) break;
      const float4 w = weight_at(call.weight, i, call.params.weight_offset), r = routed.router.at(i);
      const float4 dy = unpack_four(d[s]);
      float4 n = unpack_four(y[s]);
      n = {__fdividef(n.x, w.x), __fdividef(n.y, w.y), __fdividef(n.z, w.z), __fdividef(n.w, w.w)};
      part[s] = {fmaf(n.x, dy.x, part[s].x), fmaf(n.y, dy.y, part[s].y), fmaf(n.z, dy.z, part[s].z),
                 fmaf(n.w, dy.w, part[s].w)};
      float4& to = router_part[s];
      to = {fmaf(n.x, d_row, to.x), fmaf(n.y, d_row, to.y), fmaf(n.z, d_row, to.z), fmaf(n.w, d_row, to.w)};
      sum[s].x += fmaf(d_logit, r.x, fmaf(n.x, back, dy.x * w.x * inverse));
      sum[s].y += fmaf(d_logit, r.y, fmaf(n.y, back, dy.y * w.y * inverse));
      sum[s].z += fmaf(d_logit, r.z, fmaf(n.z, back, dy.z * w.z * inverse));
      sum[s].w += fmaf(d_logit, r.w, fmaf(n.w, back, dy.w * w.w * inverse));
      factor = add_products(n, sum[s], factor);
      store_four(call.dx + from + i, sum[s]);
    }
    if (!routed.d_p) continue;
    factor = teams.sum(factor) / inverse;
    if (begin == 0 && end > 0) routed.d_p[row] = routed.ran[row] > 0.0f ? factor : -factor;
  }
  if (call.parts) write_parts(call, part, call.parts);
  if (routed.parts) write_parts(call, router_part, routed.parts);
}

// d_weight += the parts in their order, kJoinWarps of them at a time for a column. A block: kWarp columns.
// less: null, or what the same is taken from.
__global__ void add_parts(const float* parts, int64_t count, int64_t width, float* d_weight, float* less) {
  __shared__ double sums[kJoinWarps][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + own_lane();
  double sum = 0.0;
  if (column < width) {
#pragma unroll 8
    for (int64_t p = own_warp(); p < count; p += kJoinWarps)
      sum += static_cast<double>(parts[p * width + column]);
  }
  sums[own_warp()][own_lane()] = sum;
  __syncthreads();
  if (own_warp() > 0 || column >= width) return;
  for (int other = 1; other < kJoinWarps; ++other) sum += sums[other][own_lane()];
  d_weight[column] += static_cast<float>(sum);
  if (less) less[column] -= static_cast<float>(sum);
}

int64_t gradient_blocks(const Tensor& y) {
  return std::min<int64_t>(blocks_for(y.dim(0), Teams(y.dim(1)).count()), kBlocks);
}

}  // namespace

void rms_norm_bf16_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, const Tensor& weight,
                          RmsNormParams params, Tensor& out, Tensor& inverse) {
  if (out.numel() == 0) return;
  const DeviceRows rows = rows_of(x, kept);
  const Teams teams(x.dim(1));
  norm_rows<false><<<filling_blocks(rows.capacity, teams.count()), kRowThreads, 0, dev.handle.stream>>>(
      {rows, teams, x.data<float>(), x.stride(0), static_cast<int>(x.dim(1)), weight.data<float>(), params,
       out.data<Bf16>(), inverse.data<float>()});
  check_launch("rms_norm");
}

int64_t rms_norm_bf16_scratch(const Tensor& y) {
  return gradient_blocks(y) * y.dim(1);
}

void rms_norm_bf16_gradient_kernel(CudaBackend dev, const NormedRows& of, const Tensor& d,
                                   const Tensor& arrived, Tensor& dx, Tensor& rounded, Tensor& scratch,
                                   Tensor& d_weight) {
  if (of.y.numel() == 0) return;
  const int64_t blocks = gradient_blocks(of.y), width = of.y.dim(1);
  gradients_of_rows<<<static_cast<unsigned int>(blocks), kRowThreads, 0, dev.handle.stream>>>(
      {rows_of(of.x, of.kept), Teams(width), static_cast<int>(width), of.weight.data<float>(), of.params,
       of.y.data<Bf16>(), d.data<Bf16>(), of.inverse.data<float>(), arrived ? arrived.data<float>() : nullptr,
       dx ? dx.data<float>() : nullptr, rounded ? rounded.data<Bf16>() : nullptr,
       d_weight ? scratch.data<float>() : nullptr});
  check_launch("the gradient of rms_norm");
  if (!d_weight) return;
  add_parts<<<blocks_for(width, kWarp), kJoinWarps * kWarp, 0, dev.handle.stream>>>(
      scratch.data<float>(), blocks, width, d_weight.data<float>(), nullptr);
  check_launch("the gradient of rms_norm");
}

namespace {

// Of a router of two rows the product that takes their difference counts, too, as linear()'s would.
uint64_t router_madds(const Tensor& x, const Tensor& router) {
  return static_cast<uint64_t>(x.dim(0) * (router.numel() + (router.dim(0) > 1 ? router.dim(0) : 0)));
}

}  // namespace

void rms_norm_routed_kernel(CudaBackend dev, const RoutedNorm& of, Tensor& logit) {
  const Tensor &x = of.norm.x, &y = of.norm.y, &router = of.router;
  if (y.numel() == 0) return;
  dev.counters.add(
      {.madds = router_madds(x, router), .weight_bytes = static_cast<uint64_t>(router.nbytes())});
  const DeviceRows rows = rows_of(x, of.norm.kept);
  const Teams teams(x.dim(1));
  Tensor out = y, inverse = of.norm.inverse;
  norm_rows<true><<<filling_blocks(rows.capacity, teams.count()), kRowThreads, 0, dev.handle.stream>>>(
      {rows, teams, x.data<float>(), x.stride(0), static_cast<int>(x.dim(1)), of.norm.weight.data<float>(),
       of.norm.params, out.data<Bf16>(), inverse.data<float>(), DeviceRouter(router), logit.data<float>()});
  check_launch("rms_norm");
}

void rms_norm_routed_gradient_kernel(CudaBackend dev, const RoutedNorm& of, RoutedGradients& gradients) {
  const Tensor &y = of.norm.y, &router = of.router;
  if (y.numel() == 0) return;
  const int64_t blocks = gradient_blocks(y), width = y.dim(1);
  const uint64_t for_dx = gradients.d_logit ? router_madds(y, router) : 0;
  const uint64_t for_router = gradients.router ? static_cast<uint64_t>(y.dim(0) * router.numel()) : 0;
  dev.counters.add({.madds = for_dx + for_router});
  float *parts = gradients.scratch.data<float>(), *router_parts = parts + blocks * width;
  const auto numbers = [](Tensor& t) { return t ? t.data<float>() : nullptr; };
  const GradientCall norm{rows_of(of.norm.x, of.norm.kept),
                          Teams(width),
                          static_cast<int>(width),
                          of.norm.weight.data<float>(),
                          of.norm.params,
                          y.data<Bf16>(),
                          gradients.d ? gradients.d.data<Bf16>() : nullptr,
                          of.norm.inverse.data<float>(),
                          numbers(gradients.arrived),
                          gradients.dx.data<float>(),
                          nullptr,
                          gradients.weight ? parts : nullptr};
  gradients_of_routed_rows<<<static_cast<unsigned int>(blocks), kRowThreads, 0, dev.handle.stream>>>(
      {norm, DeviceRouter(router), numbers(gradients.d_logit),
       of.scaled.ran ? of.scaled.ran.data<float>() : nullptr, numbers(gradients.d_p),
       gradients.router ? router_parts : nullptr});
  check_launch("the gradient of rms_norm");
  const auto add = [&](const float* from, float* to, float* less) {
    add_parts<<<blocks_for(width, kWarp), kJoinWarps * kWarp, 0, dev.handle.stream>>>(from, blocks, width, to,
                                                                                      less);
    check_launch("the gradient of rms_norm");
  };
  if (gradients.weight) add(parts, gradients.weight.data<float>(), nullptr);
  if (!gradients.router) return;
  float* of_router = gradients.router.data<float>();
  const bool two = router.dim(0) > 1;
  add(router_parts, two ? of_router + width : of_router, two ? of_router : nullptr);
}

}  // namespace fathom
