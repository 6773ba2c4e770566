// Between linear.cc and its backends: operands already checked.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace fathom {

inline constexpr size_t kMaxLinearGroup = 8;

struct LinearCall {
  const Tensor& x;                  // f32 (rows, in), rows may be strided
  std::span<const Tensor> weights;  // (out, in) each, contiguous
  std::span<const Tensor> biases;   // f32 (out) each or undefined; or empty
  std::span<Tensor> outputs;        // f32 (rows, out) each
};

void linear_kernel(CpuBackend cpu, Context& ctx, const LinearCall& call);
void linear_kernel(CudaBackend cuda, Context& ctx, const LinearCall& call);

}  // namespace fathom
