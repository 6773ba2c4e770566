// Whether the scales of quantised rows are numbers: one that is not finite spoils a row, and kernels differ
// in what they make of it.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace fathom {

// Returns whether every half that scales a block of the row is finite. n elements of a block format.
bool scales_are_finite(DType dtype, const void* blocks, int64_t n);

}  // namespace fathom
