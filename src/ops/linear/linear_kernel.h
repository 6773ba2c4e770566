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

// Training's products, linear_gemm_cpu.cc. x: f32 (rows may be strided) or bf16.

// y = x Wᵀ + b, with f32 or bf16 weights.
void linear_gemm_kernel(CpuBackend cpu, Context& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor& out);
// dx = dy W + beta · dx, with weights of any format.
void linear_dx_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, const Tensor& weight, float beta,
                      Tensor& dx);
// dW = dyᵀ x + beta · dW. weight_type: says the precision.
void linear_dw_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, const Tensor& x, DType weight_type,
                      float beta, Tensor& dw);
// db = Σ rows of dy + beta · db
void linear_db_kernel(CpuBackend cpu, const Tensor& dy, float beta, Tensor& db);
// The rows that are there, rounded to bf16.
void round_rows_kernel(CpuBackend cpu, const Tensor& x, Tensor& out);
void round_rows_kernel(CudaBackend cuda, const Tensor& x, Tensor& out);

}  // namespace fathom
