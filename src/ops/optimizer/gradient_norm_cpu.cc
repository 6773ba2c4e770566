#include <algorithm>
#include <cstring>

#include "ops/optimizer/gradient_norm_kernel.h"

namespace fathom {

void gradient_norm_kernel(CpuBackend dev, const Tensor& x, Tensor& sums, Tensor& out) {
  const int64_t size = x.numel(), blocks = sums.dim(0);
  const float* values = x.data<float>();
  auto* by_block = sums.data<double>();
  dev.pool.parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      double sum = 0;
      for (int64_t i = block * kNormBlock; i < std::min(size, (block + 1) * kNormBlock); ++i) {
        const auto value = static_cast<double>(values[i]);
        sum += value * value;
      }
      by_block[block] = sum;
    }
  });
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += by_block[block];
  std::memcpy(out.raw(), &total, sizeof total);
}

}  // namespace fathom
