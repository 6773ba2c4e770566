#include <algorithm>

#include "ops/kernels/row_access.h"
#include "ops/rows/fill.h"

namespace fathom {

void fill_kernel(CpuBackend dev, Tensor& out, float value) {
  dev.pool.parallel_for(out.numel(), kElementGrain, [&](int64_t begin, int64_t end) {
    std::fill(out.data<float>() + begin, out.data<float>() + end, value);
  });
}

}  // namespace fathom
