#include "ops/attention/rope.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

struct RopeCall {
  const float* x;
  const int32_t* positions;
  const float* inverse_frequency;
  int64_t pairs, heads, half;  // pairs: of all rows and heads
  const int32_t* count;        // rows that are there; null: all
  RopeParams params;
  float direction;  // 1, or −1 to turn back
  float* out;
};

// A thread per rotated pair. The angle is a product of floats, as on the CPU.
__global__ void rotate_pairs(RopeCall call) {
  const int64_t pair = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (pair >= call.pairs) return;
  const int64_t head = pair / call.half, i = pair % call.half, row = head / call.heads;
  if (call.count && row >= *call.count) return;
  const float angle = static_cast<float>(call.positions[row]) * call.inverse_frequency[i];
  const float c = cosf(angle) * call.params.magnitude,
              s = sinf(angle) * call.params.magnitude * call.direction;
  const bool halves = call.params.style == RopeStyle::kHalves;
  const int64_t first = head * 2 * call.half + (halves ? i : 2 * i),
                second = first + (halves ? call.half : 1);
  const float a = call.x[first], b = call.x[second];
  call.out[first] = a * c - b * s;
  call.out[second] = b * c + a * s;
}

void turn_rows(CudaBackend dev, const Tensor& x, const Tensor& positions, const Tensor& inverse_frequency,
               RopeParams params, float direction, Tensor& out) {
  const int64_t half = x.dim(2) / 2, pairs = x.dim(0) * x.dim(1) * half;
  if (pairs == 0) return;
  const RopeCall call{x.data<float>(),
                      positions.data<int32_t>(),
                      inverse_frequency.data<float>(),
                      pairs,
                      x.dim(1),
                      half,
                      x.row_count(),
                      params,
                      direction,
                      out.data<float>()};
  rotate_pairs<<<blocks_for(pairs, kThreads), kThreads, 0, dev.handle.stream>>>(call);
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
