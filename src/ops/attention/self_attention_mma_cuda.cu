// Forward on tensor cores.
#include "ops/attention/self_attention_softmax.cuh"

namespace fathom {
namespace {

// Keys and values (capacity, heads, kDim) -> (heads, places, kDim), in the order of places. A thread for 8
// elements of each.
template <int kDim, class Element>
__global__ void pack_rows(PlanSide side, int heads, int64_t places, HeadRows<Element> k, HeadRows<Element> v,
                          Bf16* to_k, Bf16* to_v) {
  const Eight unit(blockIdx.x * kPackThreads + threadIdx.x, heads, kDim);
  const int64_t place = unit.place, count = side.kept.count();
  if (place >= places_for(count)) return;
  uint4 keys = make_uint4(0, 0, 0, 0), values = keys;
  if (place < count) {
    const int64_t row = side.rows[place];
    keys = load_eight(k.at(row, unit.head, kDim) + unit.column);
    values = load_eight(v.at(row, unit.head, kDim) + unit.column);
  }
  const int64_t to = (unit.head * places + place) * kDim + packed_column(place, unit.column);
  *reinterpret_cast<uint4*>(to_k + to) = keys;
  *reinterpret_cast<uint4*>(to_v + to) = values;
}

template <int kDim, int kParts, int kWarps, bool kCap, class Element>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocksAtOnce<kDim, kParts>)
    attend(ForwardCall<Element> call) {
  constexpr int kThreads = kWarps * kWarp, kMine = kParts * 16, kQueries = kWarps * kMine;
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

  const int64_t my_first = first + warp_id() * kMine;
  HeldRows<kDim, kParts> q;
  q.fill([&](int row, int column) {
    const int64_t place = my_first + row;
    const uint32_t pair =
        place < count ? load_pair(call.q_rows.at(side.rows[place], head, kDim) + column) : 0;
    if (call.packed_q)
      *reinterpret_cast<uint32_t*>(call.packed_q + (head * call.query_places + place) * kDim +
                                   packed_column(row, column)) = pair;
    return pair;
  });
  Softmax<kDim, kParts> softmax;
  softmax.clear();

  for (uint32_t stage = 0; key < seen.end; key += kOtherTile, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // the tile is there, and the one before is read
    if (key + kOtherTile < seen.end) copy(key + kOtherTile, stage ^ 1);
    if (!reach.any(key, key + kOtherTile)) continue;
    const SharedAddress tile = tiles + stage * 2 * kTileBytes;
    float s[kParts][kOtherTile / 8][4];
    clear(s);
    multiply_rows<kDim, kParts, kOtherTile>(q, tile, 0, s);
    const float factor = to_logits<kCap>(call, key, s);
    if (!reach.all(key, key + kOtherTile)) hide(my_spans, key, s);
    softmax.make_room(s, factor);
    softmax.weigh(s, factor);
#pragma unroll
    for (int step = 0; step < kOtherTile / 16; ++step) {
      uint32_t weights[kParts][4];
#pragma unroll
      for (int m = 0; m < kParts; ++m) pack_scores(s[m], step, weights[m]);
      add_weighted<kDim, kParts>(weights, tile + kTileBytes, step * 16, softmax.sums);
    }
  }

#pragma unroll
  for (int m = 0; m < kParts; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t place = my_first + m * 16 + half * 8 + lane_id() / 4;
      const float total = quad_sum(softmax.total[m][half]);
      const bool there = place < count, seeing = there && total > 0;
      if (there)
        store_row<kDim>(softmax.sums[m], half, seeing ? 1.0f / total : 0.0f,
                        call.result.at(side.rows[place], head, kDim));
      if (call.new_log_sums && lane_id() % 4 == 0)
        call.new_log_sums[head * call.query_places + place] =
            seeing ? softmax.most[m][half] + log2f(total) : kInf;
    }
  }
}

template <int kDim, int kParts, int kWarps, bool kCap, class Element>
void launch(CudaBackend dev, const ForwardCall<Element>& call) {
  constexpr int kQueries = kWarps * kParts * 16;
  constexpr size_t kBytes = 4 * kOtherTile * Rows<kDim>::kPitch + kQueries * sizeof(Span);
  const auto tiles = static_cast<unsigned int>(call.query_places / kQueries);
  if (tiles == 0) return;
  const auto kernel = attend<kDim, kParts, kWarps, kCap, Element>;
  allow_shared(kernel, kBytes);
  kernel<<<tiles* static_cast<unsigned int>(call.shape.heads), kWarps * kWarp, kBytes, dev.handle.stream>>>(
      call);
  check_launch("self_attention");
}

template <int kDim, class Element>
void run(CudaBackend dev, const SelfAttentionCall& call, const ForwardCall<Element>& mma, Tensor& k,
         Tensor& v) {
  const int64_t units = mma.key_places * mma.shape.kv_heads * (kDim / 8);
  if (units > 0) {
    pack_rows<kDim><<<blocks_for(units, kPackThreads), kPackThreads, 0, dev.handle.stream>>>(
        mma.plan.keys, mma.shape.kv_heads, mma.key_places, HeadRows<Element>(call.k),
        HeadRows<Element>(call.v), k.data<Bf16>(), v.data<Bf16>());
    check_launch("self_attention (packing)");
  }
  if (kDim == 64 && has_wgmma(dev)) return attend_by_warpgroups(dev, mma);
  constexpr int kParts = kDim == 64 ? 2 : 1, kWarps = kDim == 64 ? 4 : 8;
  if (mma.shape.soft_cap > 0) return launch<kDim, kParts, kWarps, true>(dev, mma);
  return launch<kDim, kParts, kWarps, false>(dev, mma);
}

template <class Element>
void attend_rows(CudaBackend dev, Context& ctx, const SelfAttentionCall& call, const SelfAttentionPlan& plan,
                 bool keep, SelfAttentionKept& kept, Tensor& out) {
  ForwardCall<Element> mma(call, plan);
  const int64_t heads = call.q.dim(1), kv_heads = call.k.dim(1), dim = call.q.dim(2);
  Tensor k = packed_rows(ctx, kv_heads, mma.key_places, dim);
  Tensor v = packed_rows(ctx, kv_heads, mma.key_places, dim);
  if (keep) {
    kept.q = packed_rows(ctx, heads, mma.query_places, dim);
    kept.k = k;
    kept.v = v;
    mma.packed_q = kept.q.data<Bf16>();
    mma.new_log_sums = kept.log_sums.data<float>();
  }
  mma.k = k.data<Bf16>();
  mma.v = v.data<Bf16>();
  mma.q_rows = HeadRows<Element>(call.q);
  mma.result = HeadRows<Element>(out);
  if (dim == 64) return run<64>(dev, call, mma, k, v);
  return run<128>(dev, call, mma, k, v);
}

}  // namespace

void self_attention_mma(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                        const SelfAttentionPlan& plan, bool keep, SelfAttentionKept& kept, Tensor& out) {
  if (call.q.dtype() == DType::kBF16) return attend_rows<Bf16>(dev, ctx, call, plan, keep, kept, out);
  return attend_rows<float>(dev, ctx, call, plan, keep, kept, out);
}

}  // namespace fathom
