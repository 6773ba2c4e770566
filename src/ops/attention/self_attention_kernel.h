// Between self_attention.cc and its backends: operands already checked.
#pragma once

#include "ops/attention/self_attention.h"

namespace fathom {

struct SelfAttentionCall {
  Tensor q, k, v, key_bias;
  RowSet queries, keys;
  Tensor positions, sequence;
  AttentionParams params;
};

// What the forward pass on a GPU leaves behind, all but `pairs` for the gradient alone. The CPU leaves
// nothing: its gradient computes the softmax again. Places: the rows in the order of (sequence, position),
// and room up to whole tiles.
struct SelfAttentionKept {
  Tensor pairs;     // u8 (16), on the device: a u64, the number of visible pairs of query row and key; the
                    // rest is the plan's
  Tensor plan;      // i32, see self_attention_plan.cuh
  Tensor out;       // (capacity, heads · head_dim), of the type of q
  Tensor log_sums;  // f32 (heads, places): log Σ exp(logit), on tensor cores in units of log 2; +inf where a
                    // query sees no key
  Tensor q, k, v;   // bf16 (heads, places, head_dim), as self_attention_mma.cuh packs them; defined: q, k, v
                    // of the call are not needed any more
};

// Undefined: not wanted.
struct SelfAttentionGradients {
  Tensor q, k, v;   // compacted as their tensors are
  Tensor key_bias;  // (batch rows), zero where a row is no key
};

// -> (capacity, heads · head_dim), f32, or bf16 where q is. keep: a gradient is wanted.
Tensor self_attention_kernel(CpuBackend dev, Context& ctx, const SelfAttentionCall& call, bool keep,
                             SelfAttentionKept& kept);
Tensor self_attention_kernel(CudaBackend dev, Context& ctx, const SelfAttentionCall& call, bool keep,
                             SelfAttentionKept& kept);
// d: gradient of the output.
void self_attention_gradient_kernel(CpuBackend dev, Context& ctx, const SelfAttentionCall& call,
                                    const SelfAttentionKept& kept, const Tensor& d,
                                    SelfAttentionGradients& gradients);
void self_attention_gradient_kernel(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                    const SelfAttentionKept& kept, const Tensor& d,
                                    SelfAttentionGradients& gradients);

}  // namespace fathom
