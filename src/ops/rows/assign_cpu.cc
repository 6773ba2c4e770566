#include <cstring>

#include "ops/kernels/row_set_cpu.h"
#include "ops/rows/assign.h"

namespace fathom {

void assign_kernel(CpuBackend dev, const Tensor& from, Tensor& to) {
  const int64_t rows = present_rows(from), row = from.dim(0) > 0 ? from.nbytes() / from.dim(0) : 0;
  constexpr int64_t kGrain = 1 << 18;
  dev.pool.parallel_for(rows * row, kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(to.data<std::byte>() + begin, from.data<std::byte>() + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace fathom
