// Flat buffers on any device, as the tests look at them and change them: through copies.
#pragma once

#include <vector>

#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace fathom {

inline std::vector<float> host_values(Context& ctx, const Tensor& flat) {
  std::vector<float> values(static_cast<size_t>(flat.numel()));
  copy_to_host(ctx, flat, values);
  return values;
}

inline void set_values(Context& ctx, Tensor flat, const std::vector<float>& values) {
  copy_bytes(ctx, flat.raw(), flat.device(), values.data(), Device::kCpu, values.size() * sizeof(float));
}

}  // namespace fathom
