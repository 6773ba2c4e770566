#include <algorithm>

#include "ops/kernels/row_access.h"
#include "ops/rows/fill.h"

namespace fathom {

void fill_kernel(CpuBackend dev, Tensor& out, float value) {
  float* values = out.data<float>();
  dev.pool.parallel_for(out.numel(), kElementGrain,
                        [&](int64_t begin, int64_t end) { std::fill(values + begin, values + end, value); });
}

}  // namespace fathom
