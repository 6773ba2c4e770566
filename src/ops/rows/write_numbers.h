#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace fathom {

// A number of a list, and what it becomes.
struct NumberWrite {
  int32_t index;
  int32_t value;
};

// Writes single numbers of a list (i32, dense, in place) in one copy to the device, however many they are. Of
// several writes to one index the last counts.
void write_numbers(Context& ctx, Tensor& list, std::span<const NumberWrite> writes);

}  // namespace fathom
