// Backward on Hopper's tensor cores.
#include "ops/attention/self_attention_wgmma.cuh"

namespace fathom {
namespace {

constexpr int kStages = 2;

// In shared memory, dq: keys and values of each stage, the queries, d, log Σ exp, Σ d · out, their spans, the
// ring, and the barrier of the block's own tile.
namespace dq {
constexpr int kBlocks = 4;  // that share a multiprocessor
constexpr uint32_t kQueriesAt = kStages * 2 * kTileBytes, kNumbersAt = kQueriesAt + 2 * kTileBytes,
                   kSpansAt = kNumbersAt + 2 * kNumberBytes, kRingAt = kSpansAt + kTile * sizeof(Span),
                   kOwnBarrierAt = kRingAt + kStages * 16, kSharedBytes = kOwnBarrierAt + 8;
}  // namespace dq

// The same, dk and dv: queries, d, log Σ exp and Σ d · out of each stage, the keys, the values, and so on.
namespace dkv {
constexpr int kBlocks = 3;
constexpr uint32_t kNumbersAt = 2 * kTileBytes, kStageBytes = kNumbersAt + 1024,
                   kKeysAt = kStages * kStageBytes, kSpansAt = kKeysAt + 2 * kTileBytes,
                   kRingAt = kSpansAt + kTile * sizeof(Span), kOwnBarrierAt = kRingAt + kStages * 16,
                   kSharedBytes = kOwnBarrierAt + 8;
static_assert(kNumbersAt + 2 * kNumberBytes <= kStageBytes);
}  // namespace dkv

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The block's rows of d to shared memory and to call.packed_d, and Σ d · out: of the rounded d, so that
// the gradients of a softmax's logits add up to zero. Eight neighbouring threads for a row.
template <class Element>
__device__ void load_gradient(const BackwardCall<Element>& call, int head, int first, SharedAddress to,
                              float* dots) {
  constexpr int kChunks = kTile / 8, kAtOnce = kWarpgroup / kChunks, kTimes = kTile / kAtOnce;
  const PlanSide& side = call.plan.queries;
  const int count = static_cast<int>(side.kept.count());
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks;
  uint4 d[kTimes] = {};
  EightFloats out[kTimes] = {};
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int place = first + i * kAtOnce + thread / kChunks;
    if (place >= count) continue;
    const int64_t row = side.rows[place];
    d[i] = load_eight(call.d_rows.at(row, head, kTile) + chunk * 8);
    out[i] = load_eight_floats(call.out.at(row, head, kTile) + chunk * 8);
  }
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int row = i * kAtOnce + thread / kChunks, column = packed_column(row, chunk * 8);
    const int64_t at = head * call.query_places + first + row;
    store_shared(to + static_cast<uint32_t>(row) * kTileRowBytes + static_cast<uint32_t>(column) * 2, d[i]);
    *reinterpret_cast<uint4*>(call.packed_d + at * kTile + column) = d[i];
    const uint32_t pairs[4] = {d[i].x, d[i].y, d[i].z, d[i].w};
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum = fmaf(unpack_bf16(pairs[j / 2], j % 2), out[i].at[j], sum);
#pragma unroll
    for (int step = kChunks / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (chunk == 0) dots[row] = call.new_dot_sums[at] = sum;
  }
  show_to_products();
}

#endif

// Also packs d and computes Σ d · out, for dk and dv. kStep keys at a time.
template <int kStep, bool kPlain, class Element>
__global__ void __launch_bounds__(kWarpgroup, dq::kBlocks) attend_tiles_dq(BackwardCall<Element> call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace dq;
  extern __shared__ __align__(1024) uint8_t memory[];
  const PlanSide& side = call.plan.queries;
  const int count = static_cast<int>(side.kept.count());
  const auto [head, first] = HeadTile(call);
  if (first >= count) return;
  const Tiles tiles({side.span_up_to(first, count), side.span_up_to(first + kTile - 1, count)});

  const SharedAddress base = shared_address(memory), queries = base + kQueriesAt, d = queries + kTileBytes;
  const SharedAddress own_barrier = base + kOwnBarrierAt;
  const Ring<kStages> ring{base + kRingAt, tiles.count};
  const auto keys = [&](int i) { return base + static_cast<uint32_t>(i % kStages) * 2 * kTileBytes; };
  const int64_t keys_at = head / call.shape.group * call.key_places + tiles.begin * kTile;
  const auto fetch = [&](int i, int stage, SharedAddress barrier) {
    fetch_keys(call, keys_at + i * kTile, keys(stage), barrier);
  };
  if (threadIdx.x == 0) {
    prepare_arrival(own_barrier);
    ring.start(fetch);
    const int64_t at = head * call.query_places + first;
    expect_bytes(own_barrier, kTileBytes + kNumberBytes);
    copy_bulk(queries, call.q + at * kTile, kTileBytes, own_barrier);
    copy_bulk(base + kNumbersAt, call.log_sums + at, kNumberBytes, own_barrier);
  }
  auto* numbers = reinterpret_cast<float*>(memory + kNumbersAt);
  load_gradient(call, head, first, d, numbers + kTile);
  Span* spans = reinterpret_cast<Span*>(memory + kSpansAt);
  if (threadIdx.x < kTile) spans[threadIdx.x] = side.span_up_to(first + static_cast<int>(threadIdx.x), count);
  __syncthreads();
  wait_for_arrival(own_barrier, 0);

  const int mine = warp_id() * 16 + lane_id() / 4;  // and the eighth row after it
  // Read where they are needed: registers are dear here.
  const float* log_sums = numbers + mine;
  const WeightRule<kPlain> rule(call.shape);
  float sums[kTile / 8][4] = {}, p[1][kStep / 8][4], dp[kStep / 8][4];
  uint32_t weights[kStep / 16][4];
#pragma unroll 1
  for (int i = 0; i < tiles.count; ++i) {
    ring.wait(i);
#pragma unroll 1
    for (int part = 0; part < kTile; part += kStep) {
      const int key = (tiles.begin + i) * kTile + part;
      const Reach reach{spans[0], spans[kTile - 1]};
      begin_products();
      multiply_tiles(queries, keys(i), part, p[0]);
      commit_products();
      multiply_tiles(d, keys(i) + kTileBytes, part, dp);
      commit_products();
      wait_for_products<1>(p[0]);
      if (!reach.all(key, key + kStep)) hide(spans + warp_id() * 16, key, p);
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        float2 bias = make_float2(0.0f, 0.0f);
        if (!kPlain && call.plan.key_bias)
          bias = *reinterpret_cast<const float2*>(call.plan.key_bias + key + n * 8 + 2 * (lane_id() % 4));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float log_sum = log_sums[j / 2 * 8];
          const float less = kPlain ? log_sum : fmaf(j % 2 == 0 ? bias.x : bias.y, -kLog2E, log_sum);
          const Weight w = rule(p[0][n][j], less);
          p[0][n][j] = kPlain ? w.value : w.value * w.slope;
        }
      }
      settle(p[0]);
      wait_for_products<0>(dp);
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) p[0][n][j] *= dp[n][j] - log_sums[kTile + j / 2 * 8];
      }
      pack_all(p[0], weights);
      begin_products();
      add_weighted_tile(weights, keys(i), part, sums);
      commit_products();
      wait_for_products<0>(sums);
    }
    ring.leave(i, fetch);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = first + mine + half * 8;
    if (place < count)
      store_row<kTile>(sums, half, call.shape.scale, call.dq.at(side.rows[place], head, kTile));
  }
#else
  __trap();  // compiled for Hopper without its own instructions: 90 instead of 90a
#endif
}

// A block takes a tile of keys and a KV head, and goes through the heads that share it and the tiles of
// queries that see it; kStep queries at a time. The scores are transposed: a warp's rows are keys.
template <int kStep, bool kPlain, class Element>
__global__ void __launch_bounds__(kWarpgroup, dkv::kBlocks) attend_tiles_dkv(BackwardCall<Element> call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using namespace dkv;
  extern __shared__ __align__(1024) uint8_t memory[];
  const SelfAttentionShape& shape = call.shape;
  const PlanSide& side = call.plan.keys;
  const int kv_head = static_cast<int>(blockIdx.x) % shape.kv_heads;
  const int first = static_cast<int>(blockIdx.x / shape.kv_heads) * kTile;
  const int count = static_cast<int>(side.kept.count());
  if (first >= count) return;
  const Reach reach{side.span_up_to(first, count), side.span_up_to(first + kTile - 1, count)};
  const Tiles tiles(reach);  // of each head

  const SharedAddress base = shared_address(memory), own_barrier = base + kOwnBarrierAt;
  const SharedAddress keys = base + kKeysAt, values = keys + kTileBytes;
  const Ring<kStages> ring{base + kRingAt, tiles.count * shape.group};
  const auto stage_at = [&](int i) { return static_cast<uint32_t>(i % kStages) * kStageBytes; };
  const auto fetch = [&](int i, int stage, SharedAddress barrier) {
    const int head = kv_head * shape.group + i / tiles.count;
    const int64_t at = head * call.query_places + (tiles.begin + i % tiles.count) * kTile;
    const SharedAddress to = base + stage_at(stage);
    expect_bytes(barrier, 2 * kTileBytes + 2 * kNumberBytes);
    copy_bulk(to, call.q + at * kTile, kTileBytes, barrier);
    copy_bulk(to + kTileBytes, call.d + at * kTile, kTileBytes, barrier);
    copy_bulk(to + kNumbersAt, call.log_sums + at, kNumberBytes, barrier);
    copy_bulk(to + kNumbersAt + kNumberBytes, call.dot_sums + at, kNumberBytes, barrier);
  };
  if (threadIdx.x == 0) {
    prepare_arrival(own_barrier);
    ring.start(fetch);
    const int64_t at = (kv_head * call.key_places + first) * kTile;
    expect_bytes(own_barrier, 2 * kTileBytes);
    copy_bulk(keys, call.k + at, kTileBytes, own_barrier);
    copy_bulk(values, call.v + at, kTileBytes, own_barrier);
  }
  Span* spans = reinterpret_cast<Span*>(memory + kSpansAt);
  if (threadIdx.x < kTile) spans[threadIdx.x] = side.span_up_to(first + static_cast<int>(threadIdx.x), count);
  const int mine = warp_id() * 16;
  const int g = lane_id() / 4, t = lane_id() % 4;
  float bias[2] = {}, d_bias[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = first + mine + half * 8 + g;
    if (!kPlain && call.plan.key_bias && place < count) bias[half] = call.plan.key_bias[place] * kLog2E;
  }
  __syncthreads();
  wait_for_arrival(own_barrier, 0);

  const WeightRule<kPlain> rule(shape);
  float dk[kTile / 8][4] = {}, dv[kTile / 8][4] = {}, p[1][kStep / 8][4], dp[kStep / 8][4];
  uint32_t weights[kStep / 16][4], slopes[kStep / 8][2];  // packed; slopes: not if kPlain
  int query = tiles.begin * kTile;
#pragma unroll 1
  for (int i = 0; i < ring.tiles; ++i) {
    const SharedAddress queries = base + stage_at(i), d = queries + kTileBytes;
    const auto* numbers = reinterpret_cast<const float*>(memory + stage_at(i) + kNumbersAt);
    ring.wait(i);
#pragma unroll 1
    for (int part = 0; part < kTile; part += kStep) {
      const int at = query + part;
      begin_products();
      multiply_tiles(keys, queries, part, p[0]);
      commit_products();
      multiply_tiles(values, d, part, dp);
      commit_products();
      wait_for_products<1>(p[0]);
      const Reach all{spans[0], spans[kTile - 1]};
      if (!all.all(at, at + kStep)) hide(spans + mine, at, p);
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        const float2 log_sums = *reinterpret_cast<const float2*>(numbers + part + n * 8 + 2 * t);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* pair = p[0][n] + 2 * half;
          const Weight low = rule(pair[0], log_sums.x - bias[half]),
                       high = rule(pair[1], log_sums.y - bias[half]);
          pair[0] = low.value, pair[1] = high.value;
          if (!kPlain) slopes[n][half] = pack_bf16(low.slope, high.slope);
        }
      }
      pack_all(p[0], weights);
      wait_for_products<0>(dp);
      begin_products();
      add_weighted_tile(weights, d, part, dv);
      commit_products();
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
        const float2 dots = *reinterpret_cast<const float2*>(numbers + kTile + part + n * 8 + 2 * t);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          p[0][n][j] *= dp[n][j] - (j % 2 == 0 ? dots.x : dots.y);
          if (kPlain) continue;
          d_bias[j / 2] += p[0][n][j];
          p[0][n][j] *= unpack_bf16(slopes[n][j / 2], j % 2);
        }
      }
      uint32_t slants[kStep / 16][4];
      pack_all(p[0], slants);
      begin_products();
      add_weighted_tile(slants, queries, part, dk);
      commit_products();
      wait_for_products<0>(dk);
      wait_for_products<0>(dv);
    }
    ring.leave(i, fetch);
    query += kTile;
    if (query >= reach.last.end) query = tiles.begin * kTile;
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = first + mine + half * 8 + g;
    const float sum = quad_sum(d_bias[half]);
    if (place >= count) continue;
    const int64_t row = side.rows[place];
    if (call.dk.data) store_row<kTile>(dk, half, shape.scale, call.dk.at(row, kv_head, kTile));
    if (call.dv.data) store_row<kTile>(dv, half, 1.0f, call.dv.at(row, kv_head, kTile));
    if (call.bias && t == 0) call.bias[kv_head * call.key_places + place] = sum;
  }
#else
  __trap();  // compiled for Hopper without its own instructions: 90 instead of 90a
#endif
}

template <class Kernel, class Call>
void launch(CudaBackend dev, Kernel* kernel, unsigned int blocks, uint32_t bytes, const Call& call) {
  if (blocks == 0) return;
  allow_shared(kernel, bytes);
  kernel<<<blocks, kWarpgroup, bytes, dev.handle.stream>>>(call);
  check_launch("the gradient of self_attention");
}

template <bool kPlain, class Element>
void launch_both(CudaBackend dev, const BackwardCall<Element>& call) {
  constexpr int kStep = kPlain ? kTile : kTile / 2;  // what the registers hold
  const unsigned int keys =
      blocks_for(call.key_places, kTile) * static_cast<unsigned int>(call.shape.kv_heads);
  if (call.dq.data)
    launch(dev, attend_tiles_dq<kStep, kPlain, Element>, HeadTile::blocks(call), dq::kSharedBytes, call);
  if (call.dk.data || call.dv.data || call.bias)
    launch(dev, attend_tiles_dkv<kStep, kPlain, Element>, keys, dkv::kSharedBytes, call);
}

}  // namespace

template <class Element>
void attend_by_warpgroups(CudaBackend dev, const BackwardCall<Element>& call) {
  if (call.shape.soft_cap <= 0 && !call.plan.key_bias) return launch_both<true>(dev, call);
  return launch_both<false>(dev, call);
}

template void attend_by_warpgroups(CudaBackend dev, const BackwardCall<float>& call);
template void attend_by_warpgroups(CudaBackend dev, const BackwardCall<Bf16>& call);

}  // namespace fathom
