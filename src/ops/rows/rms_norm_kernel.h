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

// What rms_norm_routed() and its gradient need. kept: all rows.
struct RoutedNorm {
  NormedRows norm;
  Tensor router;         // f32 (1 or 2, d)
  ScaledThrough scaled;  // p without its values
};

void rms_norm_routed_kernel(CudaBackend dev, const RoutedNorm& of, Tensor& logit);

// d, d_logit: what arrived, undefined: nothing. dx = arrived (undefined: 0; may be dx) and the gradient.
// weight, router: added to; they and d_p undefined: not wanted. scratch: f32, twice what
// rms_norm_bf16_scratch() says, not initialised.
struct RoutedGradients {
  Tensor d, d_logit, arrived, dx, weight, router, d_p, scratch;
};
void rms_norm_routed_gradient_kernel(CudaBackend dev, const RoutedNorm& of, RoutedGradients& gradients);

}  // namespace fathom
