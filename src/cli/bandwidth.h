#pragma once

#include "tensor/context.h"

namespace fathom {

// How many bytes a second the device can read from its memory: the best of a few passes over a buffer that no
// cache holds. On the CPU all threads read together, each four streams at once, as the kernels read rows of
// weights: with one, this is a quarter less.
double read_bandwidth(Context& ctx);

}  // namespace fathom
