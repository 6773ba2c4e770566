#include "ops/kernels/philox.cuh"
#include "ops/rows/noise.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

struct NoiseCall {
  uint32_t key[2];
  uint32_t a, b;
  const int32_t *keys, *positions, *count;  // count: rows that are there; null: all
  int64_t rows;
  float* out;
};

__global__ void draw(NoiseCall call) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= call.rows || (call.count && r >= *call.count)) return;
  uint32_t bits[4] = {call.a, call.b, static_cast<uint32_t>(call.keys[r]),
                      static_cast<uint32_t>(call.positions[r])};
  philox_words(bits, call.key[0], call.key[1]);
  call.out[r] = (static_cast<float>(bits[0] >> 9) + 0.5f) * (1.0f / 8388608.0f);
}

}  // namespace

void uniform_noise_kernel(CudaBackend dev, uint64_t seed, uint32_t a, uint32_t b, const Tensor& keys,
                          const Tensor& positions, Tensor& out) {
  if (keys.dim(0) == 0) return;
  const NoiseCall call{{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
                       a,
                       b,
                       keys.data<int32_t>(),
                       positions.data<int32_t>(),
                       keys.row_count(),
                       keys.dim(0),
                       out.data<float>()};
  draw<<<blocks_for(call.rows, kThreads), kThreads, 0, dev.handle.stream>>>(call);
  check_launch("uniform_noise");
}

}  // namespace fathom
