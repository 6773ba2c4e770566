#include <cstring>

#include "ops/rows/read_scalars.h"

namespace fathom {

void gather_words_kernel(CpuBackend, std::span<const Tensor> tensors, Tensor& words) {
  for (size_t i = 0; i < tensors.size(); ++i)
    std::memcpy(words.data<int32_t>() + i, tensors[i].raw(), sizeof(int32_t));
}

}  // namespace fathom
