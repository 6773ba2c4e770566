#include "ops/kernels/row_access.h"
#include "ops/rows/accumulate.h"

namespace fathom {

void accumulate_kernel(CpuBackend dev, const Tensor& a, const Tensor& b, Tensor& out) {
  // Rows that a compacted gradient does not have are not read: they hold anything.
  const int64_t row = out.dim(0) > 0 ? out.numel() / out.dim(0) : 0, n = present_rows(a) * row;
  const auto add = row_kernels(dev.isa).add;
  constexpr int64_t kGrain = 16384;
  dev.pool.parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
    add(a.data<float>() + begin, b.data<float>() + begin, out.data<float>() + begin, end - begin);
  });
}

}  // namespace fathom
