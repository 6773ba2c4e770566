#pragma once

#include <bit>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace fathom {

// One number from the device: of an f32 or an i32 tensor.
struct Scalar {
  uint32_t bits = 0;
  float as_float() const { return std::bit_cast<float>(bits); }
  int32_t as_int() const { return std::bit_cast<int32_t>(bits); }
};

// tensors: f32 or i32 (1) each. Returns their numbers, brought to the host in one copy: one wait for the
// device, however many there are.
std::vector<Scalar> read_scalars(Context& ctx, std::span<const Tensor> tensors);

}  // namespace fathom
