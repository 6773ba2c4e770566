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

// The first word of base/rng.h's philox().
__device__ uint32_t philox_word(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0,
                                uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0;
}

__global__ void draw(NoiseCall call) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r >= call.rows || (call.count && r >= *call.count)) return;
  const uint32_t bits = philox_word(call.a, call.b, static_cast<uint32_t>(call.keys[r]),
                                    static_cast<uint32_t>(call.positions[r]), call.key[0], call.key[1]);
  call.out[r] = (static_cast<float>(bits >> 9) + 0.5f) * (1.0f / 8388608.0f);
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
