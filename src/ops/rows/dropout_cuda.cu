#include "ops/kernels/philox.cuh"
#include "ops/kernels/row_set_cuda.cuh"
#include "ops/rows/dropout.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

struct DropoutCall {
  uint32_t key[2];
  uint32_t stream;
  float rate, scale;
  const int32_t *keys, *positions;
  float* out;
};

// A block per row, four columns a thread.
__global__ void drop(DeviceFloatRows x, DropoutCall call) {
  const int64_t row = blockIdx.x;
  if (!x.has(row)) return;
  const float* from = x.data + row * x.step;
  float* to = call.out + row * x.width;
  for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < x.width; i += 4 * kThreads) {
    uint32_t bits[4] = {call.stream, static_cast<uint32_t>(i / 4), static_cast<uint32_t>(call.keys[row]),
                        static_cast<uint32_t>(call.positions[row])};
    philox_words(bits, call.key[0], call.key[1]);
    for (int64_t j = i; j < i + 4 && j < x.width; ++j) {
      const float drawn = static_cast<float>(bits[j - i] >> 8) * (1.0f / 16777216.0f);
      to[j] = drawn < call.rate ? 0.0f : from[j] * call.scale;
    }
  }
}

}  // namespace

void dropout_kernel(CudaBackend dev, const Tensor& x, const DropoutParams& params, const Tensor& keys,
                    const Tensor& positions, Tensor& out) {
  const DeviceFloatRows rows(x);
  if (rows.rows == 0) return;
  const DropoutCall call{{static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)},
                         params.stream,
                         params.rate,
                         1.0f / (1.0f - params.rate),
                         keys.data<int32_t>(),
                         positions.data<int32_t>(),
                         out.data<float>()};
  drop<<<blocks_for(rows.rows, 1), kThreads, 0, dev.handle.stream>>>(rows, call);
  check_launch("dropout");
}

}  // namespace fathom
