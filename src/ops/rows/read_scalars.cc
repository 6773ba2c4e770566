#include "ops/rows/read_scalars.h"

#include "base/format.h"
#include "tensor/memory.h"

namespace fathom {

// words: i32 (tensors), the bits of each one's number.
void gather_words_kernel(CpuBackend dev, std::span<const Tensor> tensors, Tensor& words);
void gather_words_kernel(CudaBackend dev, std::span<const Tensor> tensors, Tensor& words);

std::vector<Scalar> read_scalars(Context& ctx, std::span<const Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined() || (tensor.dtype() != DType::kF32 && tensor.dtype() != DType::kI32) ||
        tensor.numel() != 1)
      fail("read_scalars: expected f32 or i32 (1), got {} {}", name_of(tensor.dtype()),
           to_string(tensor.shape()));
  }
  std::vector<Scalar> out(tensors.size());
  if (out.empty()) return out;
  Tensor words = Tensor::empty(ctx, DType::kI32, {std::ssize(tensors)});
  on_device(ctx, [&](auto dev) { gather_words_kernel(dev, tensors, words); });
  copy_bytes(ctx, out.data(), Device::kCpu, words.raw(), words.device(), out.size() * sizeof(Scalar));
  return out;
}

}  // namespace fathom
