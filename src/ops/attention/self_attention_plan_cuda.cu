// Three small kernels, each for both sides (blockIdx.y: 0 queries, 1 keys): codes whose order is the order of
// places, the places, and the spans. Rows that are not in order yet are ranked by comparing each with all
// others.
#include <algorithm>

#include "ops/attention/self_attention_plan.cuh"
#include "ops/kernels/warp.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;
static_assert(kThreads % kPlaceTile == 0, "the threads reach the last place of the last tile");
constexpr int64_t kAlign = 32;  // i32 between the beginnings of arrays

struct Side {
  DeviceRows kept;
  int64_t *codes, *place_codes;  // by row, by place
  int32_t* rows;
  Span* spans;
  int32_t* disorder;  // 1: some row is not in order
};

struct PlanCall {
  Side queries, keys;
  const int32_t *positions, *sequence;  // (batch rows)
  const float* bias;                    // (batch rows), or null
  float* key_bias;                      // (key places), zeros behind those that are there
  int64_t key_places;
  int32_t window;
  unsigned long long* pairs;
  Work* work;
  uint64_t pair_madds, key_bytes;

  __device__ const Side& side() const { return blockIdx.y == 0 ? queries : keys; }
};

// Ascends with the sequence, then with the position; code >> 32 is the sequence.
__device__ inline int64_t code_of(int64_t sequence, int64_t position) {
  return (sequence << 32) + (position - INT32_MIN);
}
__device__ inline int64_t code_of_row(const PlanCall& call, const Side& side, int64_t row) {
  const int64_t id = side.kept[row];
  return code_of(call.sequence[id], call.positions[id]);
}

__device__ inline int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__global__ void find_codes(PlanCall call) {
  const Side& side = call.side();
  const int64_t row = thread_index();
  if (row >= side.kept.count()) return;
  const int64_t code = code_of_row(call, side, row);
  side.codes[row] = code;
  if (row > 0 && code_of_row(call, side, row - 1) > code) *side.disorder = 1;
}

// Rows of the same code keep their order.
__device__ int64_t rank_of(const int64_t* codes, int64_t row, int64_t count) {
  const int64_t code = codes[row];
  int64_t rank = 0;
  for (int64_t i = 0; i < count; ++i) rank += codes[i] < code || (codes[i] == code && i < row) ? 1 : 0;
  return rank;
}

__global__ void find_places(PlanCall call) {
  const Side& side = call.side();
  const int64_t row = thread_index(), count = side.kept.count();
  const bool has_bias = blockIdx.y == 1 && call.bias;
  if (has_bias && row >= count && row < call.key_places) call.key_bias[row] = 0.0f;
  if (row >= count) return;
  const int64_t place = *side.disorder ? rank_of(side.codes, row, count) : row;
  side.rows[place] = static_cast<int32_t>(row);
  side.place_codes[place] = side.codes[row];
  if (has_bias) call.key_bias[place] = call.bias[side.kept[row]];
}

// How many codes are below the limit.
__device__ int32_t count_below(const int64_t* codes, int64_t count, int64_t limit) {
  int64_t begin = 0, end = count;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (codes[middle] < limit) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return static_cast<int32_t>(begin);
}

// A query sees the keys up to its position, a key is seen by the queries from its position on; the window
// cuts both at their far end, the sequence otherwise.
__device__ Span span_of(const PlanCall& call, const Side& other, int64_t code) {
  const int64_t start = code >> 32 << 32, next = start + (int64_t{1} << 32), count = other.kept.count();
  const bool is_query = blockIdx.y == 0, windowed = call.window > 0;
  const int64_t begin = !is_query ? code : windowed ? max(start, code + 1 - call.window) : start;
  const int64_t end = is_query ? code + 1 : windowed ? min(next, code + call.window) : next;
  return {count_below(other.place_codes, count, begin), count_below(other.place_codes, count, end)};
}

__global__ void find_spans(PlanCall call) {
  const Side &side = call.side(), &other = blockIdx.y == 0 ? call.keys : call.queries;
  const int64_t place = thread_index();
  unsigned long long seen = 0, fresh = 0;  // fresh: not seen by the query before
  if (place < side.kept.count()) {
    const Span span = span_of(call, other, side.place_codes[place]);
    side.spans[place] = span;
    seen = static_cast<unsigned long long>(span.end - span.begin);
    const int32_t before =
        blockIdx.y == 0 && place > 0 ? span_of(call, other, side.place_codes[place - 1]).end : 0;
    fresh = static_cast<unsigned long long>(span.end - min(span.end, max(span.begin, before)));
  }
  if (blockIdx.y == 1) return;
  seen = block_sum(seen);
  fresh = block_sum(fresh);
  if (threadIdx.x != 0 || seen == 0) return;
  atomicAdd(call.pairs, seen);
  count_work(call.work, {.madds = seen * call.pair_madds, .cache_bytes = fresh * call.key_bytes});
}

// Where the arrays of a plan begin, in i32.
struct PlanLayout {
  int64_t query_rows, key_rows, query_spans, key_spans, key_bias, size;
  explicit PlanLayout(const SelfAttentionCall& call) {
    const int64_t queries = DeviceRows(call.queries).capacity, keys = DeviceRows(call.keys).capacity;
    int64_t at = 0;
    const auto take = [&](int64_t count) {
      const int64_t begin = at;
      at += (count + kAlign - 1) / kAlign * kAlign;
      return begin;
    };
    query_rows = take(queries);
    key_rows = take(keys);
    query_spans = take(2 * queries);
    key_spans = take(2 * keys);
    key_bias = take(call.key_bias ? places_for(keys) : 0);
    size = at;
  }
};

}  // namespace

int64_t self_attention_plan_size(const SelfAttentionCall& call) {
  return PlanLayout(call).size;
}

SelfAttentionPlan self_attention_plan(const SelfAttentionCall& call, const Tensor& memory) {
  const PlanLayout layout(call);
  const auto* at = memory.data<int32_t>();
  const auto spans = [&](int64_t begin) { return reinterpret_cast<const Span*>(at + begin); };
  return {{DeviceRows(call.queries), at + layout.query_rows, spans(layout.query_spans)},
          {DeviceRows(call.keys), at + layout.key_rows, spans(layout.key_spans)},
          call.key_bias ? reinterpret_cast<const float*>(at + layout.key_bias) : nullptr};
}

SelfAttentionPlan make_self_attention_plan(CudaBackend dev, Context& ctx, const SelfAttentionCall& call,
                                           Tensor& memory, Tensor& pairs) {
  const PlanLayout layout(call);
  const DeviceRows queries(call.queries), keys(call.keys);
  Tensor codes = Tensor::empty(ctx, DType::kI32, {4 * (queries.capacity + keys.capacity), 1});
  cuda_check(cudaMemsetAsync(pairs.raw(), 0, static_cast<size_t>(pairs.nbytes()), dev.handle.stream),
             "cudaMemsetAsync");
  int32_t* disorder = pairs.data<int32_t>() + 2;
  auto* code = codes.data<int64_t>();
  int32_t* at = memory.data<int32_t>();
  const auto side = [&](const DeviceRows& kept, int64_t rows, int64_t spans, int flag) {
    const Side out{kept,           code, code + kept.capacity, at + rows, reinterpret_cast<Span*>(at + spans),
                   disorder + flag};
    code += 2 * kept.capacity;
    return out;
  };
  const Side query_side = side(queries, layout.query_rows, layout.query_spans, 0);
  const PlanCall plan{query_side,
                      side(keys, layout.key_rows, layout.key_spans, 1),
                      call.positions.data<int32_t>(),
                      call.sequence.data<int32_t>(),
                      call.key_bias ? call.key_bias.data<float>() : nullptr,
                      reinterpret_cast<float*>(at + layout.key_bias),
                      places_for(keys.capacity),
                      call.params.window,
                      pairs.data<unsigned long long>(),
                      device_work(dev),
                      static_cast<uint64_t>(2 * call.q.dim(1) * call.q.dim(2)),
                      static_cast<uint64_t>(2 * call.k.dim(1) * call.k.dim(2)) * sizeof(float)};
  const dim3 grid(std::max(1u, blocks_for(std::max(queries.capacity, keys.capacity), kThreads)), 2);
  find_codes<<<grid, kThreads, 0, dev.handle.stream>>>(plan);
  check_launch("self_attention (codes)");
  find_places<<<grid, kThreads, 0, dev.handle.stream>>>(plan);
  check_launch("self_attention (places)");
  find_spans<<<grid, kThreads, 0, dev.handle.stream>>>(plan);
  check_launch("self_attention (spans)");
  return self_attention_plan(call, memory);
}

}  // namespace fathom
