// Which keys a query sees in one call of self_attention on a GPU. Queries and keys each get places in the
// order of (sequence, position), which in a training batch is the order they already have. Then what a query
// sees is one span of keys' places, what sees a key is one span of queries' places, and both ends of the
// spans ascend with the places: the first and the last row of a tile say what the whole tile needs.
#pragma once

#include "ops/attention/self_attention_kernel.h"
#include "ops/kernels/row_set_cuda.cuh"

namespace fathom {

inline constexpr int64_t kPlaceTile = 128;  // packed tensors have room for whole tiles of this many places

__host__ __device__ inline int64_t places_for(int64_t rows) {
  return (rows + kPlaceTile - 1) / kPlaceTile * kPlaceTile;
}

struct Span {
  int32_t begin, end;
  __device__ bool has(int32_t place) const { return place >= begin && place < end; }
};

// As many places as rows are there; what lies behind them is not initialised.
struct PlanSide {
  DeviceRows kept;
  const int32_t* rows;  // of the compacted tensor
  const Span* spans;    // places of the other side

  // Of a place that is there, or of the last one: so spans ascend through a whole tile.
  __device__ Span span_up_to(int64_t place, int64_t count) const {
    return spans[place < count ? place : count - 1];
  }
};

struct SelfAttentionPlan {
  PlanSide queries, keys;
  const float* key_bias;  // by place of the key, zeros up to whole tiles; null: none
};

// i32 for the plan's memory.
int64_t self_attention_plan_size(const SelfAttentionCall& call);
// The plan in memory where it has been made.
SelfAttentionPlan self_attention_plan(const SelfAttentionCall& call, const Tensor& memory);
// Makes it, and sets `pairs` (SelfAttentionKept).
SelfAttentionPlan make_self_attention_plan(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                           Tensor& memory, Tensor& pairs);

}  // namespace fathom
