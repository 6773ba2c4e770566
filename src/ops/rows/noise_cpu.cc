#include "base/rng.h"
#include "ops/kernels/row_access.h"
#include "ops/rows/noise.h"

namespace fathom {

// The middles of 2²³ equal parts: never 0 nor 1, and exact in f32.
void uniform_noise_kernel(CpuBackend, uint64_t seed, uint32_t a, uint32_t b, const Tensor& keys,
                          const Tensor& positions, Tensor& out) {
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int64_t r = 0; r < present_rows(keys); ++r) {
    const auto whose = static_cast<uint32_t>(keys.data<int32_t>()[r]),
               where = static_cast<uint32_t>(positions.data<int32_t>()[r]);
    const uint32_t bits = philox({a, b, whose, where}, key)[0];
    out.data<float>()[r] = (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
  }
}

}  // namespace fathom
