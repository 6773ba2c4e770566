#include <algorithm>

#include "ops/rows/read_scalars.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kEach = 128;  // places that one launch takes as its argument

struct Places {
  const int32_t* at[kEach];
};

__global__ void gather_words(const __grid_constant__ Places places, int count, int32_t* words) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) words[i] = *places.at[i];
}

}  // namespace

void gather_words_kernel(CudaBackend dev, std::span<const Tensor> tensors, Tensor& words) {
  for (size_t first = 0; first < tensors.size(); first += kEach) {
    Places places{};
    const size_t count = std::min<size_t>(kEach, tensors.size() - first);
    for (size_t i = 0; i < count; ++i) places.at[i] = tensors[first + i].data<int32_t>();
    gather_words<<<1, kEach, 0, dev.handle.stream>>>(places, static_cast<int>(count),
                                                     words.data<int32_t>() + first);
    check_launch("read_scalars");
  }
}

}  // namespace fathom
