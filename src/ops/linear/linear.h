// y = x Wᵀ + b for every weight format.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace fathom {

// x: f32 (rows, in). weight: (out, in), any dtype but i32 and u8. bias: f32 (out) or undefined. Returns f32
// (rows, out). A row's result depends on that row alone: not on the number of rows, their order or the
// threads. With f32 weights the product is f32; otherwise activations are rounded to the weights' compute
// type (int8 blocks, or bf16 where the machine multiplies it). While a tape is attached, products with f32
// and bf16 weights are gemm()'s (ops/linear/gemm.h; on a GPU cuda_gemm()'s): f32 in f32, bf16 in bf16.
// Weights with a gradient are f32 or bf16, their gradients f32; those without may have any format. The
// gradient's own products are counted as the forward's are: twice as many multiply-adds again, half of that
// where the weights are frozen. There x may also be bf16, with bf16 weights: its gradient is bf16 then.
Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias = {});

// outputs[i] = linear(ctx, x, weights[i], biases[i]), bit for bit, for at most eight weights with one
// preparation of x and one start of the threads: query, key and value; gate and up. biases: empty, or one
// (defined or not) per weight. type: of the outputs; bf16 while a tape is attached on a GPU, for bf16 weights
// without biases. Then the outputs are columns of one matrix, and so are their gradients: weights that are
// neighbours in memory are one matrix of one product, forward and backward.
void linear_group(Context& ctx, const Tensor& x, std::span<const Tensor> weights,
                  std::span<const Tensor> biases, std::span<Tensor> outputs, DType type = DType::kF32);

// h + x Wᵀ in one product, while a tape is attached on a GPU: a branch's last product joins the residual
// stream. h: dense f32 (rows, out), x: bf16 (rows, in), weight: bf16 (out, in); every row is there. Counted
// as linear() and add_rows() are. Returns f32 (rows, out), in the memory of h where nothing else holds it.
Tensor add_linear(Context& ctx, const Tensor& h, const Tensor& x, const Tensor& weight);

}  // namespace fathom
