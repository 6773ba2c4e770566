// Between output_loss.cc and output_loss_cuda.cu: operands already checked.
#pragma once

#include "ops/loss/output_loss.h"

namespace fathom {

struct OutputLossCall {
  OutputRows rows;
  OutputRows teacher;  // x undefined: none, the loss is the cross-entropy of the targets
  Tensor targets;      // i32 (rows); undefined where there is a teacher
  Tensor weights;      // f32 (rows)
  int64_t logits_at_once;
  // f32: the gradients of x and of the weight where the loss's is 1. Undefined: not wanted.
  Tensor dx, dw;
};

// out: f32 (1)
void output_loss_kernel(CudaBackend cuda, Context& ctx, OutputLossCall& call, Tensor& out);

// out = factor · x, which may be out; and out = out + factor · x. factor: f32 (1)
void times_scalar_kernel(CudaBackend cuda, const Tensor& x, const Tensor& factor, Tensor& out);
void add_times_scalar_kernel(CudaBackend cuda, const Tensor& x, const Tensor& factor, Tensor& out);

}  // namespace fathom
