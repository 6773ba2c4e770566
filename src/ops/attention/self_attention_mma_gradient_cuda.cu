// Backward on tensor cores.
#include "ops/attention/self_attention_softmax.cuh"

namespace fathom {
namespace {

// d (capacity, heads, kDim) -> packed_d (heads, places, kDim), and Σ d · out over each head's dimensions ->
// new_dot_sums (heads, places); of the rounded d, so that the gradients of a softmax's logits add up to zero.
// kDim / 8 neighbouring threads for a row's head.
template <int kDim, class Element>
__global__ void pack_gradient(BackwardCall<Element> call) {
  const int heads = call.shape.heads;
  const Eight unit(blockIdx.x * kPackThreads + threadIdx.x, heads, kDim);
  const int64_t place = unit.place, count = call.plan.queries.kept.count();
  float sum = 0.0f;
  uint4 eight = make_uint4(0, 0, 0, 0);
  if (place < count) {
    const int64_t row = call.plan.queries.rows[place];
    eight = load_eight(call.d_rows.at(row, unit.head, kDim) + unit.column);
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    const EightFloats out = load_eight_floats(call.out.at(row, unit.head, kDim) + unit.column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(unpack_bf16(pairs[i / 2], i % 2), out.at[i], sum);
  }
#pragma unroll
  for (int step = kDim / 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (place >= places_for(count)) return;
  const int64_t to = unit.head * call.query_places + place;
  *reinterpret_cast<uint4*>(call.packed_d + to * kDim + packed_column(place, unit.column)) = eight;
  if (unit.column == 0) call.new_dot_sums[to] = sum;
}

// A block takes a tile of queries and a head; kStep keys at a time.
template <int kDim, int kParts, int kWarps, bool kPlain, class Element>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksAtOnce<kDim, kParts>)
    attend_dq(BackwardCall<Element> call) {
  constexpr int kThreads = kWarps * kWarp, kMine = kParts * 16, kQueries = kWarps * kMine, kStep = 32;
  constexpr uint32_t kTileBytes = kOtherTile * Rows<kDim>::kPitch;
  static_assert(kPlaceTile % kQueries == 0);
  extern __shared__ __align__(256) uint8_t memory[];  // keys, values; twice; then the queries' spans
  auto* spans = reinterpret_cast<Span*>(memory + 4 * kTileBytes);
  const SelfAttentionShape& shape = call.shape;
  const PlanSide& side = call.plan.queries;
  // The tiles at the end of a sequence take longest: they come first.
  const int head = static_cast<int>(blockIdx.x) % shape.heads;
  const int64_t first = static_cast<int64_t>((gridDim.x - 1 - blockIdx.x) / shape.heads) * kQueries;
  const int64_t count = side.kept.count();
  if (first >= count) return;
  for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kThreads)
    spans[i] = side.span_up_to(first + i, count);
  __syncthreads();
  const Span* my_spans = spans + warp_id() * kMine;
  const Reach reach{my_spans[0], my_spans[kMine - 1]};
  const Span seen{spans[0].begin, spans[kQueries - 1].end};

  const SharedAddress tiles = shared_address(memory);
  const int64_t kv_at = head / shape.group * call.key_places;
  const auto copy = [&](int32_t key, uint32_t stage) {
    const SharedAddress to = tiles + stage * 2 * kTileBytes;
    Rows<kDim>::template copy<kOtherTile, kThreads>(to, call.k + (kv_at + key) * kDim);
    Rows<kDim>::template copy<kOtherTile, kThreads>(to + kTileBytes, call.v + (kv_at + key) * kDim);
    commit_copies();
  };
  int32_t key = seen.begin / kOtherTile * kOtherTile;
  if (key < seen.end) copy(key, 0);

  const int g = lane_id() / 4, t = lane_id() % 4;
  const int64_t at = head * call.query_places + first + warp_id() * kMine;  // of the warp's first row
  HeldRows<kDim, kParts> q, d;
  q.load(call.q + at * kDim);
  d.load(call.d + at * kDim);
  float log_sums[kParts][2], less_dots[kParts][2];
#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      log_sums[m][half] = call.log_sums[at + m * 16 + half * 8 + g];
      less_dots[m][half] = -call.dot_sums[at + m * 16 + half * 8 + g];
    }
  }
  const WeightRule<kPlain> rule(shape);
  float sums[kParts][kDim / 8][4] = {};

  for (uint32_t stage = 0; key < seen.end; key += kOtherTile, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // the tile is there, and the one before is read
    if (key + kOtherTile < seen.end) copy(key + kOtherTile, stage ^ 1);
    const SharedAddress tile = tiles + stage * 2 * kTileBytes;
#pragma unroll 1
    for (int part = 0; part < kOtherTile; part += kStep) {
      const int32_t begin = key + part;
      if (!reach.any(begin, begin + kStep)) continue;
      float p[kParts][kStep / 8][4], dp[kParts][kStep / 8][4];
      clear(p);
      multiply_rows<kDim, kParts, kStep>(q, tile, part, p);
      if (!reach.all(begin, begin + kStep)) hide(my_spans, begin, p);
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        float2 bias = make_float2(0.0f, 0.0f);
        if (!kPlain && call.plan.key_bias)
          bias = *reinterpret_cast<const float2*>(call.plan.key_bias + begin + n * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < kParts; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float log_sum = log_sums[m][i / 2];
            const float less = kPlain ? log_sum : fmaf(i % 2 == 0 ? bias.x : bias.y, -kLog2E, log_sum);
            const Weight w = rule(p[m][n][i], less);
            p[m][n][i] = w.value * w.slope;
          }
        }
      }
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) dp[m][n][i] = less_dots[m][i / 2];
        }
      }
      multiply_rows<kDim, kParts, kStep>(d, tile + kTileBytes, part, dp);
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) p[m][n][i] *= dp[m][n][i];
        }
      }
#pragma unroll
      for (int step = 0; step < kStep / 16; ++step) {
        uint32_t weights[kParts][4];
#pragma unroll
        for (int m = 0; m < kParts; ++m) pack_scores(p[m], step, weights[m]);
        add_weighted<kDim, kParts>(weights, tile, part + step * 16, sums);
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t place = first + warp_id() * kMine + m * 16 + half * 8 + g;
      if (place < count)
        store_row<kDim>(sums[m], half, shape.scale, call.dq.at(side.rows[place], head, kDim));
    }
  }
}

// A block takes a tile of keys and a KV head; kStep queries at a time. The scores are transposed: a warp's
// rows are keys.
template <int kDim, int kParts, int kWarps, bool kPlain, class Element>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksAtOnce<kDim, kParts>)
    attend_dkv(BackwardCall<Element> call) {
  constexpr int kThreads = kWarps * kWarp, kMine = kParts * 16, kKeys = kWarps * kMine, kStep = 32;
  constexpr uint32_t kTileBytes = kOtherTile * Rows<kDim>::kPitch, kNumberBytes = kOtherTile * sizeof(float),
                     kStageBytes = 2 * (kTileBytes + kNumberBytes);
  static_assert(kPlaceTile % kKeys == 0);
  // Queries, d, log Σ exp, Σ d · out; twice. Then the block's keys, values and spans.
  extern __shared__ __align__(256) uint8_t memory[];
  constexpr uint32_t kMineBytes = kKeys * Rows<kDim>::kPitch;
  auto* spans = reinterpret_cast<Span*>(memory + 2 * kStageBytes + 2 * kMineBytes);
  const SelfAttentionShape& shape = call.shape;
  const PlanSide& side = call.plan.keys;
  const int kv_head = static_cast<int>(blockIdx.x) % shape.kv_heads;
  const int64_t first = static_cast<int64_t>(blockIdx.x / shape.kv_heads) * kKeys, count = side.kept.count();
  if (first >= count) return;
  for (int i = static_cast<int>(threadIdx.x); i < kKeys; i += kThreads)
    spans[i] = side.span_up_to(first + i, count);
  __syncthreads();
  const Span* my_spans = spans + warp_id() * kMine;
  // Spans are read again where they are needed: registers are dear here.
  const auto first_query = [&] { return spans[0].begin / kOtherTile * kOtherTile; };

  const SharedAddress tiles = shared_address(memory);
  const auto copy = [&](int head, int32_t query, uint32_t stage) {
    const int64_t at = head * call.query_places + query;
    const SharedAddress to = tiles + stage * kStageBytes, numbers = to + 2 * kTileBytes;
    Rows<kDim>::template copy<kOtherTile, kThreads>(to, call.q + at * kDim);
    Rows<kDim>::template copy<kOtherTile, kThreads>(to + kTileBytes, call.d + at * kDim);
    const int i = static_cast<int>(threadIdx.x);
    if (i < kOtherTile / 4) copy_async(numbers + i * 16, call.log_sums + at + i * 4);
    if (i < kOtherTile / 4) copy_async(numbers + kNumberBytes + i * 16, call.dot_sums + at + i * 4);
    commit_copies();
  };
  int head = kv_head * shape.group;
  int32_t query = first_query();
  const int last_head = query < spans[kKeys - 1].end ? head + shape.group : head;
  const SharedAddress mine = tiles + 2 * kStageBytes, my_rows = warp_id() * kMine * Rows<kDim>::kPitch;
  const SharedRows<kDim, kParts> keys{mine + my_rows}, values{mine + kMineBytes + my_rows};
  if (head < last_head) {
    const int64_t at = kv_head * call.key_places + first;
    Rows<kDim>::template copy<kKeys, kThreads>(mine, call.k + at * kDim);
    Rows<kDim>::template copy<kKeys, kThreads>(mine + kMineBytes, call.v + at * kDim);
    copy(head, query, 0);
  }

  const int g = lane_id() / 4, t = lane_id() % 4;
  float bias[kParts][2], d_bias[kParts][2] = {};
#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t place = first + warp_id() * kMine + m * 16 + half * 8 + g;
      bias[m][half] =
          !kPlain && call.plan.key_bias && place < count ? call.plan.key_bias[place] * kLog2E : 0.0f;
    }
  }
  const WeightRule<kPlain> rule(shape);
  float dk[kParts][kDim / 8][4] = {}, dv[kParts][kDim / 8][4] = {};

  for (uint32_t stage = 0; head < last_head; stage ^= 1) {
    const int32_t now = query;
    query += kOtherTile;
    if (query >= spans[kKeys - 1].end) query = first_query(), ++head;
    wait_for_copies<0>();
    __syncthreads();  // the tile is there, and the one before is read
    if (head < last_head) copy(head, query, stage ^ 1);
    const SharedAddress tile = tiles + stage * kStageBytes;
    const auto* numbers = reinterpret_cast<const float*>(memory + stage * kStageBytes + 2 * kTileBytes);
#pragma unroll 1
    for (int part = 0; part < kOtherTile; part += kStep) {
      const int32_t begin = now + part;
      const Reach reach{my_spans[0], my_spans[kMine - 1]};
      if (!reach.any(begin, begin + kStep)) continue;
      float p[kParts][kStep / 8][4], dp[kParts][kStep / 8][4];
      uint32_t slopes[kParts][kStep / 8][2], weights[kParts][4];  // packed; slopes: not if kPlain
      clear(p);
      multiply_rows<kDim, kParts, kStep>(keys, tile, part, p);
      if (!reach.all(begin, begin + kStep)) hide(my_spans, begin, p);
#pragma unroll
      for (int step = 0; step < kStep / 16; ++step) {
#pragma unroll
        for (int n = 2 * step; n < 2 * step + 2; ++n) {
          const float2 log_sums = *reinterpret_cast<const float2*>(numbers + part + n * 8 + 2 * t);
#pragma unroll
          for (int m = 0; m < kParts; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float* pair = p[m][n] + 2 * half;
              const Weight low = rule(pair[0], log_sums.x - bias[m][half]),
                           high = rule(pair[1], log_sums.y - bias[m][half]);
              pair[0] = low.value, pair[1] = high.value;
              if (!kPlain) slopes[m][n][half] = pack_bf16(low.slope, high.slope);
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kParts; ++m) pack_scores(p[m], step, weights[m]);
        add_weighted<kDim, kParts>(weights, tile + kTileBytes, part + step * 16, dv);
      }
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        const float2 dots = *reinterpret_cast<const float2*>(numbers + kOtherTile + part + n * 8 + 2 * t);
#pragma unroll
        for (int m = 0; m < kParts; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) dp[m][n][i] = i % 2 == 0 ? -dots.x : -dots.y;
        }
      }
      multiply_rows<kDim, kParts, kStep>(values, tile + kTileBytes, part, dp);
#pragma unroll
      for (int m = 0; m < kParts; ++m) {
#pragma unroll
        for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            p[m][n][i] *= dp[m][n][i];
            if (kPlain) continue;
            d_bias[m][i / 2] += p[m][n][i];
            p[m][n][i] *= unpack_bf16(slopes[m][n][i / 2], i % 2);
          }
        }
      }
#pragma unroll
      for (int step = 0; step < kStep / 16; ++step) {
#pragma unroll
        for (int m = 0; m < kParts; ++m) pack_scores(p[m], step, weights[m]);
        add_weighted<kDim, kParts>(weights, tile, part + step * 16, dk);
      }
    }
  }

#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t place = first + warp_id() * kMine + m * 16 + half * 8 + g;
      const float sum = quad_sum(d_bias[m][half]);
      if (place >= count) continue;
      const int64_t row = side.rows[place];
      if (call.dk.data) store_row<kDim>(dk[m], half, shape.scale, call.dk.at(row, kv_head, kDim));
      if (call.dv.data) store_row<kDim>(dv[m], half, 1.0f, call.dv.at(row, kv_head, kDim));
      if (call.bias && t == 0) call.bias[kv_head * call.key_places + place] = sum;
    }
  }
}

template <class Kernel, class Call>
void launch(CudaBackend dev, Kernel* kernel, int64_t tiles, int heads, int threads, size_t bytes,
            const Call& call) {
  if (tiles == 0) return;
  allow_shared(kernel, bytes);
  kernel<<<static_cast<unsigned int>(tiles * heads), threads, bytes, dev.handle.stream>>>(call);
  check_launch("the gradient of self_attention");
}

template <int kDim, int kParts, int kWarps, bool kPlain, class Element>
void launch_both(CudaBackend dev, const BackwardCall<Element>& call) {
  constexpr int kTile = kWarps * kParts * 16, kThreads = kWarps * kWarp;
  constexpr size_t kPitch = Rows<kDim>::kPitch, kNumbers = 2 * kOtherTile * sizeof(float),
                   kSpans = kTile * sizeof(Span);
  if (call.dq.data)
    launch(dev, attend_dq<kDim, kParts, kWarps, kPlain, Element>, call.query_places / kTile, call.shape.heads,
           kThreads, 4 * kOtherTile * kPitch + kSpans, call);
  if (call.dk.data || call.dv.data || call.bias)
    launch(dev, attend_dkv<kDim, kParts, kWarps, kPlain, Element>, call.key_places / kTile,
           call.shape.kv_heads, kThreads,
           2 * (2 * kOtherTile * kPitch + kNumbers) + 2 * kTile * kPitch + kSpans, call);
}

template <int kDim, class Element>
void run(CudaBackend dev, const BackwardCall<Element>& call) {
  const bool by_warpgroups = kDim == 64 && has_wgmma(dev);
  const int64_t units = call.query_places * call.shape.heads * (kDim / 8);
  if (units > 0 && !(by_warpgroups && call.dq.data)) {  // its kernel for dq packs
    pack_gradient<kDim><<<blocks_for(units, kPackThreads), kPackThreads, 0, dev.handle.stream>>>(call);
    check_launch("the gradient of self_attention (packing)");
  }
  if (by_warpgroups) return attend_by_warpgroups(dev, call);
  constexpr int kParts = kDim == 64 ? 2 : 1, kWarps = kDim == 64 ? 4 : 8;
  if (call.shape.soft_cap <= 0 && !call.plan.key_bias)
    return launch_both<kDim, kParts, kWarps, true>(dev, call);
  return launch_both<kDim, 1, kWarps, false>(dev, call);
}

template <class Element>
void gradients_of_rows(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                       const SelfAttentionPlan& plan, const SelfAttentionKept& kept, const Tensor& d,
                       SelfAttentionGradients& gradients, Tensor& bias) {
  BackwardCall<Element> mma(call, plan);
  const int64_t heads = call.q.dim(1), dim = call.q.dim(2);
  Tensor packed = packed_rows(ctx, heads, mma.query_places, dim);
  Tensor dot_sums = Tensor::empty(ctx, DType::kF32, kept.log_sums.shape());
  mma.q = kept.q.data<Bf16>();
  mma.k = kept.k.data<Bf16>();
  mma.v = kept.v.data<Bf16>();
  mma.d = mma.packed_d = packed.data<Bf16>();
  mma.d_rows = HeadRows<Element>(d);
  mma.out = HeadRows<Element>(kept.out);
  mma.log_sums = kept.log_sums.data<float>();
  mma.dot_sums = mma.new_dot_sums = dot_sums.data<float>();
  mma.dq = HeadRows<Element>(gradients.q);
  mma.dk = HeadRows<Element>(gradients.k);
  mma.dv = HeadRows<Element>(gradients.v);
  mma.bias = bias ? bias.data<float>() : nullptr;
  if (dim == 64) return run<64>(dev, mma);
  return run<128>(dev, mma);
}

}  // namespace

void self_attention_mma_gradient(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                 const SelfAttentionPlan& plan, const SelfAttentionKept& kept,
                                 const Tensor& d, SelfAttentionGradients& gradients, Tensor& bias) {
  if (call.q.dtype() == DType::kBF16)
    return gradients_of_rows<Bf16>(dev, ctx, call, plan, kept, d, gradients, bias);
  return gradients_of_rows<float>(dev, ctx, call, plan, kept, d, gradients, bias);
}

}  // namespace fathom
