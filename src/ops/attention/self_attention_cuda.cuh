// Between self_attention_cuda.cu, which chooses, and the two ways of computing: exact f32 products of tiles
// in shared memory (self_attention_f32_cuda.cu), and bf16 products by tensor cores
// (self_attention_mma_cuda.cu, self_attention_mma_gradient_cuda.cu; heads of 64 on Hopper:
// self_attention_wgmma_cuda.cu, self_attention_wgmma_gradient_cuda.cu). All go the same way. Forward: a block
// takes a tile of queries and a head through the tiles of keys that it sees, with a softmax that is corrected
// as larger logits appear. Backward, from the row's log Σ exp(logit) and Σ d · out: one kernel for dq, block
// by block as forward, and one for dk, dv and the bias, in which a block takes a tile of keys and a KV head
// through the heads that share it and the tiles of queries that see it, in that order. Every sum belongs to
// one thread: no atomics.
#pragma once

#include "ops/attention/self_attention_plan.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {

struct SelfAttentionShape {
  int heads, kv_heads, group, dim;  // group: query heads of a KV head
  float scale, soft_cap;
  explicit SelfAttentionShape(const SelfAttentionCall& call)
      : heads(static_cast<int>(call.q.dim(1))),
        kv_heads(static_cast<int>(call.k.dim(1))),
        group(heads / kv_heads),
        dim(static_cast<int>(call.q.dim(2))),
        scale(call.params.scale),
        soft_cap(call.params.soft_cap) {}
};

// Which way this call goes: tensor cores, or f32.
inline bool uses_tensor_cores(const SelfAttentionCall& call) {
  const int64_t dim = call.q.dim(2);
  return call.params.precision == Precision::kBf16 && (dim == 64 || dim == 128);
}

// kept.log_sums is written where it is defined; keep: kept.q, k, v are made.
void self_attention_f32(CudaBackend dev, const SelfAttentionCall& call, const SelfAttentionPlan& plan,
                        SelfAttentionKept& kept, Tensor& out);
void self_attention_mma(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                        const SelfAttentionPlan& plan, bool keep, SelfAttentionKept& kept, Tensor& out);

// d: (capacity, heads · head_dim). bias: f32 (kv_heads, places), what each KV head's queries give to the
// keys' biases; undefined: not wanted.
void self_attention_f32_gradient(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                 const SelfAttentionPlan& plan, const SelfAttentionKept& kept,
                                 const Tensor& d, SelfAttentionGradients& gradients, Tensor& bias);
void self_attention_mma_gradient(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                 const SelfAttentionPlan& plan, const SelfAttentionKept& kept,
                                 const Tensor& d, SelfAttentionGradients& gradients, Tensor& bias);

// A kernel's dynamic shared memory above the 48 KB that need no asking.
template <class Kernel>
void allow_shared(Kernel* kernel, size_t bytes) {
  cuda_check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "cudaFuncSetAttribute");
}

}  // namespace fathom
