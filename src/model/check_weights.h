// Weights that no model can have, found once, when they are loaded.
#pragma once

#include <string>

#include "tensor/context.h"
#include "tensor/tensor.h"

namespace fathom {

// Scales of block formats, and all of a vector, must be finite; else a UserError that begins with `where` and
// names the tensor. Matrices of floats are not read: what is not finite in them reaches the logits.
void check_finite(Context& ctx, const Tensor& weight, const std::string& name, const std::string& where);

}  // namespace fathom
