#include "ops/attention/self_attention_cuda.cuh"
#include "tensor/arena.h"

namespace fathom {
namespace {

constexpr int kThreads = 256;

// to (batch rows, zeroed)[the key's row] = Σ over the KV heads, in their order.
__global__ void sum_biases(SelfAttentionPlan plan, const float* from, int kv_heads, int64_t places,
                           float* to) {
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (place >= plan.keys.kept.count()) return;
  float sum = 0.0f;
  for (int head = 0; head < kv_heads; ++head) sum += from[head * places + place];
  to[plan.keys.kept[plan.keys.rows[place]]] = sum;
}

__global__ void count_products(const unsigned long long* pairs, uint64_t madds, Work* work) {
  count_work(work, {.madds = *pairs * madds});
}

}  // namespace

Tensor self_attention_kernel(CudaBackend dev, Context& ctx, const SelfAttentionCall& call, bool keep,
                             SelfAttentionKept& kept) {
  const Tensor& q = call.q;
  Tensor out = Tensor::empty(ctx, q.dtype(), {q.dim(0), q.dim(1) * q.dim(2)}).counted_like(q);
  kept.pairs = Tensor::empty(ctx, DType::kU8, {16});
  const ArenaScope scope(ctx);  // what is kept is the tape's
  Tensor memory = Tensor::empty(ctx, DType::kI32, {self_attention_plan_size(call)});
  const SelfAttentionPlan plan = make_self_attention_plan(dev, ctx, call, memory, kept.pairs);
  if (keep) {
    kept.plan = memory;
    kept.out = out;
    kept.log_sums = Tensor::empty(ctx, DType::kF32, {q.dim(1), places_for(plan.queries.kept.capacity)});
  }
  if (uses_tensor_cores(call)) {
    self_attention_mma(dev, ctx, call, plan, keep, kept, out);
  } else {
    self_attention_f32(dev, call, plan, kept, out);
  }
  return out;
}

void self_attention_gradient_kernel(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                    const SelfAttentionKept& kept, const Tensor& d,
                                    SelfAttentionGradients& gradients) {
  const SelfAttentionPlan plan = self_attention_plan(call, kept.plan);
  const int64_t keys = plan.keys.kept.capacity, places = places_for(keys), kv_heads = call.k.dim(1);
  Tensor bias;
  if (gradients.key_bias) bias = Tensor::empty(ctx, DType::kF32, {kv_heads, places});
  // As the CPU counts them: one for the scores' gradient, one for the scores, one for each that is wanted.
  const bool scores = gradients.q || gradients.k || gradients.key_bias;
  const int64_t products = 1 + scores + gradients.q.defined() + gradients.k.defined() + gradients.v.defined();
  count_products<<<1, 1, 0, dev.handle.stream>>>(
      kept.pairs.data<unsigned long long>(), static_cast<uint64_t>(products * call.q.dim(1) * call.q.dim(2)),
      device_work(dev));
  check_launch("self_attention (counting)");
  if (uses_tensor_cores(call)) {
    self_attention_mma_gradient(dev, ctx, call, plan, kept, d, gradients, bias);
  } else {
    self_attention_f32_gradient(dev, ctx, call, plan, kept, d, gradients, bias);
  }
  if (!gradients.key_bias) return;
  float* to = gradients.key_bias.data<float>();
  cuda_check(cudaMemsetAsync(to, 0, static_cast<size_t>(gradients.key_bias.nbytes()), dev.handle.stream),
             "cudaMemsetAsync");
  if (keys == 0) return;
  sum_biases<<<blocks_for(keys, kThreads), kThreads, 0, dev.handle.stream>>>(
      plan, bias.data<float>(), static_cast<int>(kv_heads), places, to);
  check_launch("self_attention (gradient of the bias)");
}

}  // namespace fathom
