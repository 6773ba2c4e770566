// Between rms_norm.cc and rms_norm_bf16_cuda.cu: operands already checked.
#pragma once

#include "ops/rows/rms_norm.h"

namespace fathom {

// What the gradient of a norm in bf16 needs.
struct NormedRows {
  Tensor x;  // f32 (rows, d), without its values
  RowSet kept;
  Tensor weight;
  RmsNormParams params;
  Tensor y;        // bf16 (kept rows, d): the result
  Tensor inverse;  // f32 (kept rows): 1 / sqrt(mean(x²) + eps)
};

void rms_norm_bf16_kernel(CudaBackend dev, const Tensor& x, const RowSet& kept, const Tensor& weight,
                          RmsNormParams params, Tensor& out, Tensor& inverse);
// Both gradients in one pass over the kept rows. d: bf16. dx: undefined, or f32 as x: its kept rows become
// those of `arrived` (undefined: 0) and the gradient; it may be `arrived`. rounded: undefined, or becomes dx
// in bf16, where all rows are kept. d_weight: undefined, or added to. scratch: f32, as many as
// rms_norm_bf16_scratch() says, not initialised.
void rms_norm_bf16_gradient_kernel(CudaBackend dev, const NormedRows& of, const Tensor& d,
                                   const Tensor& arrived, Tensor& dx, Tensor& rounded, Tensor& scratch,
                                   Tensor& d_weight);
int64_t rms_norm_bf16_scratch(const Tensor& y);

}  // namespace fathom
