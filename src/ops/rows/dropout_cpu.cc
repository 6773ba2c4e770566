#include "base/rng.h"
#include "ops/kernels/row_access.h"
#include "ops/rows/dropout.h"

namespace fathom {

void dropout_kernel(CpuBackend dev, const Tensor& x, const DropoutParams& params, const Tensor& keys,
                    const Tensor& positions, Tensor& out) {
  const FloatRows in(x);
  const std::array<uint32_t, 2> key{static_cast<uint32_t>(params.seed),
                                    static_cast<uint32_t>(params.seed >> 32)};
  const float scale = 1.0f / (1.0f - params.rate);
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const auto whose = static_cast<uint32_t>(keys.data<int32_t>()[r]),
                 where = static_cast<uint32_t>(positions.data<int32_t>()[r]);
      const float* from = in[r];
      float* to = out.data<float>() + r * in.width;
      std::array<uint32_t, 4> bits{};
      for (int64_t i = 0; i < in.width; ++i) {
        if (i % 4 == 0) bits = philox({params.stream, static_cast<uint32_t>(i / 4), whose, where}, key);
        const float drawn = static_cast<float>(bits[static_cast<size_t>(i % 4)] >> 8) * 0x1p-24f;
        to[i] = drawn < params.rate ? 0.0f : from[i] * scale;
      }
    }
  });
}

}  // namespace fathom
