// Between self_attention.cc and self_attention_cpu.cc: operands already checked.
#pragma once

#include "ops/attention/self_attention.h"

namespace fathom {

struct SelfAttentionCall {
  Tensor q, k, v, key_bias;
  RowSet queries, keys;
  Tensor positions, sequence;
  AttentionParams params;
};

// Undefined: not wanted.
struct SelfAttentionGradients {
  Tensor q, k, v;   // compacted as their tensors are
  Tensor key_bias;  // (batch rows), zero where a row is no key
};

// The keys as attention() reads them.
KvView self_attention_view(Context& ctx, const SelfAttentionCall& call);
// d: gradient of the output.
void self_attention_gradient_kernel(CpuBackend dev, Context& ctx, const SelfAttentionCall& call,
                                    const Tensor& d, SelfAttentionGradients& gradients);

}  // namespace fathom
