// Forward on Hopper's tensor cores.
#include "ops/attention/self_attention_wgmma.cuh"

namespace fathom {
namespace {

constexpr int kStages = 2, kBlocks = 4;  // kBlocks: that share a multiprocessor

// In shared memory: keys and values of each stage, the queries, their spans, the ring.
constexpr uint32_t kQueriesAt = kStages * 2 * kTileBytes, kSpansAt = kQueriesAt + kTileBytes,
                   kRingAt = kSpansAt + kTile * sizeof(Span), kSharedBytes = kRingAt + kStages * 16;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The block's queries, to shared memory and to call.packed_q.
template <class Element>
__device__ void load_queries(const ForwardCall<Element>& call, int head, int first, SharedAddress to) {
  constexpr int kChunks = kTile / 8, kAtOnce = kWarpgroup / kChunks, kTimes = kTile / kAtOnce;
  const PlanSide& side = call.plan.queries;
  const int count = static_cast<int>(side.kept.count());
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % kChunks;
  uint4 eight[kTimes] = {};
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int place = first + i * kAtOnce + thread / kChunks;
    if (place < count) eight[i] = load_eight(call.q_rows.at(side.rows[place], head, kTile) + chunk * 8);
  }
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const int row = i * kAtOnce + thread / kChunks, column = packed_column(row, chunk * 8);
    store_shared(to + static_cast<uint32_t>(row) * kTileRowBytes + static_cast<uint32_t>(column) * 2,
                 eight[i]);
    if (call.packed_q)
      *reinterpret_cast<uint4*>(call.packed_q + (head * call.query_places + first + row) * kTile + column) =
          eight[i];
  }
  show_to_products();
}

#endif

template <bool kCap, class Element>
__global__ void __launch_bounds__(kWarpgroup, kBlocks) attend_tiles(ForwardCall<Element> call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint8_t memory[];
  const PlanSide& side = call.plan.queries;
  const int count = static_cast<int>(side.kept.count());
  const auto [head, first] = HeadTile(call);
  if (first >= count) return;
  const Reach reach{side.span_up_to(first, count), side.span_up_to(first + kTile - 1, count)};
  const Tiles tiles(reach);

  const SharedAddress base = shared_address(memory), queries = base + kQueriesAt;
  const Ring<kStages> ring{base + kRingAt, tiles.count};
  const auto keys = [&](int i) { return base + static_cast<uint32_t>(i % kStages) * 2 * kTileBytes; };
  const int64_t keys_at = head / call.shape.group * call.key_places + tiles.begin * kTile;
  const auto fetch = [&](int i, int stage, SharedAddress barrier) {
    fetch_keys(call, keys_at + i * kTile, keys(stage), barrier);
  };
  if (threadIdx.x == 0) ring.start(fetch);
  load_queries(call, head, first, queries);
  Span* spans = reinterpret_cast<Span*>(memory + kSpansAt);
  if (threadIdx.x < kTile) spans[threadIdx.x] = side.span_up_to(first + static_cast<int>(threadIdx.x), count);
  __syncthreads();

  Softmax<kTile, 1> softmax;
  softmax.clear();
#pragma unroll 1
  for (int i = 0; i < tiles.count; ++i) {
    const int key = (tiles.begin + i) * kTile;
    float s[1][kTile / 8][4];
    uint32_t weights[kTile / 16][4];
    ring.wait(i);
    begin_products();
    multiply_tiles(queries, keys(i), 0, s[0]);
    commit_products();
    wait_for_products<0>(s[0]);
    const float factor = to_logits<kCap>(call, key, s);
    if (!reach.all(key, key + kTile)) hide(spans + warp_id() * 16, key, s);
    softmax.make_room(s, factor);
    softmax.weigh(s, factor);
    pack_all(s[0], weights);
    begin_products();
    add_weighted_tile(weights, keys(i) + kTileBytes, 0, softmax.sums[0]);
    commit_products();
    wait_for_products<0>(softmax.sums[0]);
    ring.leave(i, fetch);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = first + warp_id() * 16 + half * 8 + lane_id() / 4;
    const float total = quad_sum(softmax.total[0][half]);
    const bool there = place < count, seeing = there && total > 0;
    if (there)
      store_row<kTile>(softmax.sums[0], half, seeing ? 1.0f / total : 0.0f,
                       call.result.at(side.rows[place], head, kTile));
    if (call.new_log_sums && lane_id() % 4 == 0)
      call.new_log_sums[head * call.query_places + place] =
          seeing ? softmax.most[0][half] + log2f(total) : kInf;
  }
#else
  __trap();  // compiled for Hopper without its own instructions: 90 instead of 90a
#endif
}

template <bool kCap, class Element>
void launch(CudaBackend dev, const ForwardCall<Element>& call) {
  if (call.query_places == 0) return;
  allow_shared(attend_tiles<kCap, Element>, kSharedBytes);
  attend_tiles<kCap><<<HeadTile::blocks(call), kWarpgroup, kSharedBytes, dev.handle.stream>>>(call);
  check_launch("self_attention");
}

}  // namespace

template <class Element>
void attend_by_warpgroups(CudaBackend dev, const ForwardCall<Element>& call) {
  if (call.shape.soft_cap > 0) return launch<true>(dev, call);
  return launch<false>(dev, call);
}

template void attend_by_warpgroups(CudaBackend dev, const ForwardCall<float>& call);
template void attend_by_warpgroups(CudaBackend dev, const ForwardCall<Bf16>& call);

}  // namespace fathom
