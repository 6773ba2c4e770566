#include "ops/rows/write_numbers.h"

namespace fathom {

void write_numbers_kernel(CpuBackend, const Tensor& pairs, Tensor& list) {
  const auto* from = pairs.data<int32_t>();
  auto* to = list.data<int32_t>();
  for (int64_t i = 0; i < pairs.dim(0); ++i) to[from[2 * i]] = from[2 * i + 1];
}

}  // namespace fathom
