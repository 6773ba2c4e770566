#include "tensor/rows.h"

#include "tensor/cuda.h"

namespace fathom {
namespace {

Tensor count_at(std::shared_ptr<int32_t> count) {
  const int32_t* data = count.get();
  return Tensor::view(Device::kCuda, data, DType::kI32, {1}, std::move(count));
}

}  // namespace

Tensor new_count(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::kCuda) return count_at(cuda_count(ctx.cuda().handle));
  }
  return Tensor::empty(ctx, DType::kI32, {1});
}

Tensor known_count(Context& ctx, int32_t count) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::kCuda) return count_at(cuda_count(ctx.cuda().handle, count));
  }
  return Tensor::from(ctx, std::span<const int32_t>(&count, 1), {1});
}

}  // namespace fathom
