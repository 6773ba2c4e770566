// Adds up the gradients of a tensor that several ops read.
#pragma once

#include <functional>
#include <vector>

#include "tensor/tape.h"

namespace fathom {

// Adds d to the gradient of x where x is differentiable; does nothing where it is not. d (as many elements as
// x; f32, or bf16 where x is; dense, or gradient_like()'s) may be kept and must not change afterwards.
void accumulate(Context& ctx, const Tensor& x, const Tensor& d);

// The gradient of x where it can be added to in place (a parameter's, one that is already a sum, or one that
// no other tensor shares); undefined otherwise. For ops that add while they compute: a weight's product.
Tensor gradient_to_add_to(const Tensor& x);

// fn() without keeping its activations: it runs again, recorded, when its gradients are wanted. It must give
// the same tensors both times: decisions are made outside and captured.
std::vector<Tensor> recompute(Context& ctx, std::function<std::vector<Tensor>()> fn);

}  // namespace fathom
