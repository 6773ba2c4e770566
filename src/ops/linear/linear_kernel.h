// Between linear.cc and its backends: operands already checked.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace fathom {

inline constexpr size_t kMaxLinearGroup = 8;

struct LinearCall {
  const Tensor& x;                  // f32 (rows, in), rows may be strided; bf16 with a tape on a GPU
  std::span<const Tensor> weights;  // (out, in) each, contiguous
  std::span<const Tensor> biases;   // f32 (out) each or undefined; or empty
  std::span<Tensor> outputs;        // (rows, out) each, f32 or columns of one bf16 matrix
};

void linear_kernel(CpuBackend cpu, Context& ctx, const LinearCall& call);
void linear_kernel(CudaBackend cuda, Context& ctx, const LinearCall& call);

// Training's products, linear_gemm_cpu.cc and linear_gemm_cuda.cu. x: f32 (rows may be strided) or bf16. On a
// GPU they run over bound() rows: what lies past the count of y and dx holds anything. There y, dy and dx may
// be bf16 too, the rows of y and dy apart.

// y = x Wᵀ + b, with f32 or bf16 weights.
void linear_gemm_kernel(CpuBackend cpu, Context& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor& out);
void linear_gemm_kernel(CudaBackend cuda, Context& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor& out);
// out = h + x Wᵀ, f32. x, weight: bf16.
void add_linear_kernel(CudaBackend cuda, const Tensor& h, const Tensor& x, const Tensor& weight, Tensor& out);
// dx = dy W + beta · dx, with weights of any format. dy: dy_factor()'s.
void linear_dx_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, const Tensor& weight, float beta,
                      Tensor& dx);
void linear_dx_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, const Tensor& weight, float beta,
                      Tensor& dx);
// dW = dyᵀ x + beta · dW. weight_type: says the precision. dy: dy_factor()'s.
void linear_dw_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, const Tensor& x, DType weight_type,
                      float beta, Tensor& dw);
void linear_dw_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, const Tensor& x, DType weight_type,
                      float beta, Tensor& dw);
// db = Σ rows of dy + beta · db. dy: f32.
void linear_db_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, float beta, Tensor& db);
void linear_db_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, float beta, Tensor& db);
// The rows that are there, rounded to bf16. On a GPU zeros from the count to bound().
void round_rows_kernel(CpuBackend cpu, const Tensor& x, Tensor& out);
void round_rows_kernel(CudaBackend cuda, const Tensor& x, Tensor& out);

// f32 weights of a few outputs, a router's, meet rows in f32 or bf16 on a GPU: linear_narrow_cuda.cu.
inline constexpr int64_t kFewOutputs = 2;
inline bool has_few_outputs(const Tensor& weight) {
  return weight.dtype() == DType::kF32 && weight.dim(0) <= kFewOutputs && weight.dim(0) > 0;
}
void narrow_products_kernel(CudaBackend cuda, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            Tensor& out);
void narrow_dx_kernel(CudaBackend cuda, const Tensor& dy, const Tensor& weight, float beta, Tensor& dx);
void narrow_dw_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, const Tensor& x, float beta,
                      Tensor& dw);

// Whether a product adds to the gradient that x has already, instead of making one that is added. The CPU's
// order of sums stays as it is.
constexpr bool adds_to_dx(CpuBackend) {
  return false;
}
constexpr bool adds_to_dx(CudaBackend) {
  return true;
}

// Whether products with bf16 weights read their factors in bf16, so that rounding once for several of them
// pays. The CPU's round while they pack.
constexpr bool reads_bf16(CpuBackend) {
  return false;
}
constexpr bool reads_bf16(CudaBackend) {
  return true;
}

// dy (f32; on a GPU bf16 too) as the products with a weight of that type take it: on a GPU bf16 unless the
// weight is f32.
inline Tensor dy_factor(CpuBackend, Context&, const Tensor& dy, DType) {
  return dy;
}
Tensor dy_factor(CudaBackend cuda, Context& ctx, const Tensor& dy, DType weight_type);
// The same with zeros from the count to bound(), for sums over that many rows. They may be written into x
// itself: they lie where nothing is.
Tensor zeroed_factor(CudaBackend cuda, Context& ctx, const Tensor& x, DType weight_type);

// The weights as cuda_gemm() reads them: f32 and bf16 where they are, other formats decoded to bf16.
Tensor weight_factor(CudaBackend cuda, Context& ctx, const Tensor& weight);

}  // namespace fathom
