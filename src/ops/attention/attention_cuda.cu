// Attention on the GPU: a warp per query row and head. Keys go in blocks of kKeyBlock entries; each block
// leaves a partial result (maximum, sum, weighted values) that is merged in block order. Many warps: a warp
// takes all its blocks. Few (decoding at a long context): a warp per block, and a second kernel merges. The
// merged operations are the same ones in the same order, so both ways give the same bits.
// How many keys a query sees is known on the device alone: the first head's warps count them.
#include "ops/attention/attention.h"
#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/kernels/weight_formats.cuh"
#include "tensor/arena.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kWarps = 8;  // of a thread block: neighbouring rows of one head share keys in the cache
constexpr int64_t kBusyWarps = 4096;  // from here on the GPU is full without a warp per key block
constexpr int64_t kMaxPartialBytes = int64_t{256} << 20;
constexpr int kBlockKeys = static_cast<int>(kKeyBlock);
static_assert(kBlockKeys == 2 * kWarp, "a lane looks after two keys of a block");

struct Pool {
  const uint8_t* data;
  int64_t slot_bytes, head_bytes;
  DType type;
  explicit Pool(const Tensor& t)
      : data(t.data<uint8_t>()),
        slot_bytes(t.dim(1) * row_bytes(t.dtype(), t.dim(2))),
        head_bytes(row_bytes(t.dtype(), t.dim(2))),
        type(t.dtype()) {}
};

struct AttentionCall {
  const float* q;  // (capacity, heads, dim)
  DeviceRows queries;
  const int32_t *positions, *sequence;  // (batch rows)
  Pool k, v;
  const int32_t *entries, *entry_positions, *lengths;
  const float* bias;  // null: none
  int64_t sequences, entry_capacity;
  int heads, group, dim;  // group: query heads per KV head
  AttentionParams params;
  float* out;  // (capacity, heads, dim)
  int32_t* fault;
  int64_t key_blocks;  // of the longest sequence there can be
  Work* work;
  uint64_t entry_bytes;  // of a key and a value, all their heads
  float* partials;       // (capacity, heads, key_blocks, dim + 2): weighted values, maximum, sum
};

// Of one query row and head. T: 32 × T ≥ dim; lane l holds dimensions l, l + 32, …
template <int T>
struct Partial {
  float max = -__builtin_huge_valf(), sum = 0.0f;
  float values[T] = {};
};

struct Query {
  int64_t row, head;  // row: of q and out
  int32_t position, length;
  int32_t before;  // position of the row before it, if that is of the same sequence; −1: it is the first
  int64_t list;    // where its sequence's entries begin
};

// Keys that a query sees, and those of them that the rows before it have not seen.
struct SeenKeys {
  uint32_t all = 0, fresh = 0;
};

// Keys lane and lane + 32 of a block.
struct Keys {
  int32_t slot[2];
  int first, last;  // the visible ones: [first, last)
};

__device__ inline int lane_id() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

// q·k of 32 keys; `slot` and the result belong to the lane's key.
template <int T, class Format>
__device__ float scores_of(const Pool& pool, int64_t head, int dim, const float (&q)[T], int32_t slot) {
  float sums[kWarp];
  const uint8_t* base = pool.data + head * pool.head_bytes;
#pragma unroll
  for (int j = 0; j < kWarp; ++j) {
    const uint8_t* key = base + __shfl_sync(kAllLanes, slot, j) * pool.slot_bytes;
    float sum = 0.0f;
#pragma unroll
    for (int t = 0; t < T; ++t) {
      if (t * kWarp + lane_id() < dim) sum = fmaf(q[t], Format::at(key, t, lane_id()), sum);
    }
    sums[j] = sum;
  }
  return warp_sums(sums);
}

template <int T, class Format>
__device__ void weigh_values(const Pool& pool, int64_t head, int dim, const Keys& keys,
                             const float (&weight)[2], float (&values)[T]) {
  const uint8_t* base = pool.data + head * pool.head_bytes;
#pragma unroll 8
  for (int j = keys.first; j < keys.last; ++j) {
    const bool upper = j >= kWarp;
    const uint8_t* value =
        base + __shfl_sync(kAllLanes, upper ? keys.slot[1] : keys.slot[0], j % kWarp) * pool.slot_bytes;
    const float p = __shfl_sync(kAllLanes, upper ? weight[1] : weight[0], j % kWarp);
#pragma unroll
    for (int t = 0; t < T; ++t) {
      if (t * kWarp + lane_id() < dim) values[t] = fmaf(Format::at(value, t, lane_id()), p, values[t]);
    }
  }
}

// fn(Format{}) for a pool's type.
template <class Fn>
__device__ inline void with_pool_format(DType type, Fn fn) {
  switch (type) {
    case DType::kF16:
      return fn(FormatF16{});
    case DType::kBF16:
      return fn(FormatBF16{});
    case DType::kQ8_0:
      return fn(FormatQ8_0{});
    default:
      return fn(FormatF32{});
  }
}

// Which keys of a block the query sees. Positions ascend, so they are neighbours. false: none.
__device__ bool find_keys(const AttentionCall& call, const Query& query, int64_t block, Keys* keys,
                          SeenKeys* seen) {
  unsigned int visible[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t entry = block * kBlockKeys + half * kWarp + lane_id();
    const bool exists = entry < query.length;
    keys->slot[half] = exists ? call.entries[query.list + entry] : 0;
    const int32_t position = exists ? call.entry_positions[query.list + entry] : 0;
    const bool inside = call.params.window <= 0 || query.position - position < call.params.window;
    visible[half] = __ballot_sync(kAllLanes, exists && position <= query.position && inside);
    const unsigned int fresh = __ballot_sync(kAllLanes, exists && position > query.before);
    seen->all += __popc(visible[half]);
    seen->fresh += __popc(visible[half] & fresh);
  }
  const unsigned long long both = static_cast<unsigned long long>(visible[1]) << kWarp | visible[0];
  keys->first = __ffsll(static_cast<long long>(both)) - 1;
  keys->last = kBlockKeys - __clzll(static_cast<long long>(both));
  return both != 0;
}

__device__ float logit_of(const AttentionCall& call, const Query& query, int64_t block, const Keys& keys,
                          int j, float score) {
  if (j < keys.first || j >= keys.last) return -__builtin_huge_valf();
  float x = score * call.params.scale;
  if (call.params.soft_cap > 0) x = call.params.soft_cap * tanhf(x / call.params.soft_cap);
  return call.bias ? x + call.bias[query.list + block * kBlockKeys + j] : x;
}

template <int T>
__device__ void attend_block(const AttentionCall& call, const Query& query, const float (&q)[T],
                             int64_t block, Partial<T>* out, SeenKeys* seen) {
  Keys keys;
  if (!find_keys(call, query, block, &keys, seen)) return;
  const int64_t kv_head = query.head / call.group;
  float weight[2] = {};
  with_pool_format(call.k.type, [&](auto format) {
#pragma unroll 1  // the body is long
    for (int half = 0; half < 2; ++half) {
      const int32_t slot = half == 0 ? keys.slot[0] : keys.slot[1];
      (half == 0 ? weight[0] : weight[1]) =
          scores_of<T, decltype(format)>(call.k, kv_head, call.dim, q, slot);
    }
  });
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    weight[half] = logit_of(call, query, block, keys, half * kWarp + lane_id(), weight[half]);
  }
  out->max = warp_max(fmaxf(weight[0], weight[1]));
  if (out->max == -__builtin_huge_valf()) return;  // a bias may hide keys too
  for (float& w : weight) w = expf(w - out->max);
  out->sum = warp_sum(weight[0] + weight[1]);
  with_pool_format(call.v.type, [&](auto format) {
    weigh_values<T, decltype(format)>(call.v, kv_head, call.dim, keys, weight, out->values);
  });
}

template <int T>
__device__ void merge(Partial<T>* total, const Partial<T>& next) {
  if (next.max == -__builtin_huge_valf()) return;
  const float top = fmaxf(total->max, next.max);
  const float before = expf(total->max - top), more = expf(next.max - top);
  total->max = top;
  total->sum = fmaf(next.sum, more, total->sum * before);
#pragma unroll
  for (int t = 0; t < T; ++t) total->values[t] = fmaf(next.values[t], more, total->values[t] * before);
}

// The warp's query; false: past the count.
__device__ bool open_query(const AttentionCall& call, Query* query) {
  query->row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  query->head = blockIdx.y;
  if (query->row >= call.queries.count()) return false;
  const int64_t id = call.queries[query->row];
  const int32_t seq = call.sequence[id];
  const bool known = seq >= 0 && seq < call.sequences;
  if (!known && lane_id() == 0) report_fault(call.fault, CudaFault::kSequence);
  query->position = call.positions[id];
  query->length = known ? call.lengths[seq] : 0;
  query->list = known ? seq * call.entry_capacity : 0;
  const int64_t before = query->row > 0 ? call.queries[query->row - 1] : -1;
  query->before = before >= 0 && call.sequence[before] == seq ? call.positions[before] : -1;
  return true;
}

__device__ void count_seen(const AttentionCall& call, const Query& query, const SeenKeys& seen) {
  if (query.head != 0 || lane_id() != 0 || seen.all == 0) return;
  count_work(call.work, {.madds = uint64_t{seen.all} * static_cast<uint64_t>(call.heads * call.dim * 2),
                         .cache_bytes = seen.fresh * call.entry_bytes});
}

template <int T>
__device__ void load_query(const AttentionCall& call, const Query& query, float (&q)[T]) {
  const float* from = call.q + (query.row * call.heads + query.head) * call.dim;
#pragma unroll
  for (int t = 0; t < T; ++t) q[t] = t * kWarp + lane_id() < call.dim ? from[t * kWarp + lane_id()] : 0.0f;
}

template <int T>
__device__ void finish(const AttentionCall& call, const Query& query, const Partial<T>& total) {
  float* to = call.out + (query.row * call.heads + query.head) * call.dim;
#pragma unroll
  for (int t = 0; t < T; ++t) {
    const int d = t * kWarp + lane_id();
    if (d < call.dim) to[d] = total.sum > 0 ? total.values[t] / total.sum : 0.0f;
  }
}

__device__ inline int64_t blocks_of(const Query& query) {
  return (query.length + kBlockKeys - 1) / kBlockKeys;
}

__device__ inline float* partial_at(const AttentionCall& call, const Query& query, int64_t block) {
  return call.partials + ((query.row * call.heads + query.head) * call.key_blocks + block) * (call.dim + 2);
}

template <int T>
__device__ void store_partial(const AttentionCall& call, const Partial<T>& partial, float* to) {
#pragma unroll
  for (int t = 0; t < T; ++t) {
    if (t * kWarp + lane_id() < call.dim) to[t * kWarp + lane_id()] = partial.values[t];
  }
  if (lane_id() != 0) return;
  to[call.dim] = partial.max;
  to[call.dim + 1] = partial.sum;
}

// All key blocks of the query; with room for partial results: block blockIdx.z alone.
template <int T>
__global__ void __launch_bounds__(kWarps* kWarp) attend(AttentionCall call) {
  Query query;
  if (!open_query(call, &query)) return;
  float q[T];
  load_query(call, query, q);
  Partial<T> total;
  SeenKeys seen;
  for (int64_t block = blockIdx.z; block < blocks_of(query); ++block) {
    Partial<T> next;
    attend_block(call, query, q, block, &next, &seen);
    if (call.partials) {
      store_partial(call, next, partial_at(call, query, block));
      break;
    }
    merge(&total, next);
    const int64_t following = (block + 1) * kBlockKeys;
    if (following < query.length && call.entry_positions[query.list + following] > query.position)
      break;  // as the rest
  }
  count_seen(call, query, seen);
  if (!call.partials) finish(call, query, total);
}

template <int T>
__global__ void merge_all(AttentionCall call) {
  Query query;
  if (!open_query(call, &query)) return;
  Partial<T> total;
#pragma unroll 4
  for (int64_t block = 0; block < blocks_of(query); ++block) {
    const float* from = partial_at(call, query, block);
    Partial<T> next;
    next.max = from[call.dim];
    next.sum = from[call.dim + 1];
#pragma unroll
    for (int t = 0; t < T; ++t) {
      if (t * kWarp + lane_id() < call.dim) next.values[t] = from[t * kWarp + lane_id()];
    }
    merge(&total, next);
  }
  finish(call, query, total);
}

template <int T>
void launch(CudaBackend dev, Context& ctx, AttentionCall call) {
  const auto rows = blocks_for(call.queries.capacity, kWarps), heads = static_cast<unsigned int>(call.heads);
  const int64_t warps = call.queries.capacity * call.heads;
  const int64_t bytes = warps * call.key_blocks * (call.dim + 2) * static_cast<int64_t>(sizeof(float));
  const bool split =
      call.key_blocks > 1 && call.key_blocks <= 65535 && warps < kBusyWarps && bytes <= kMaxPartialBytes;
  if (!split) {
    attend<T><<<dim3(rows, heads), kWarps * kWarp, 0, dev.handle.stream>>>(call);
    return check_launch("attention");
  }
  const ArenaScope scope(ctx);
  call.partials = static_cast<float*>(ctx.arena().allocate(static_cast<size_t>(bytes)));
  const dim3 grid(rows, heads, static_cast<unsigned int>(call.key_blocks));
  attend<T><<<grid, kWarps * kWarp, 0, dev.handle.stream>>>(call);
  check_launch("attention (key blocks)");
  merge_all<T><<<dim3(rows, heads), kWarps * kWarp, 0, dev.handle.stream>>>(call);
  check_launch("attention (merge)");
}

}  // namespace

void attention_kernel(CudaBackend dev, Context& ctx, const Tensor& q, const KvView& kv, const RowSet& queries,
                      const Tensor& positions, const Tensor& sequence, AttentionParams params, Tensor& out) {
  const int64_t heads = q.dim(1), dim = q.dim(2);
  if (queries.is_none() || queries.capacity() == 0 || heads == 0) return;
  const AttentionCall call{q.data<float>(),
                           DeviceRows(queries),
                           positions.data<int32_t>(),
                           sequence.data<int32_t>(),
                           Pool(kv.k),
                           Pool(kv.v),
                           kv.entries.data<int32_t>(),
                           kv.positions.data<int32_t>(),
                           kv.lengths.data<int32_t>(),
                           kv.bias.defined() ? kv.bias.data<float>() : nullptr,
                           kv.entries.dim(0),
                           kv.entries.dim(1),
                           static_cast<int>(heads),
                           static_cast<int>(heads / kv.k.dim(1)),
                           static_cast<int>(dim),
                           params,
                           out.data<float>(),
                           dev.handle.fault,
                           (kv.entries.dim(1) + kKeyBlock - 1) / kKeyBlock,
                           device_work(dev),
                           static_cast<uint64_t>(Pool(kv.k).slot_bytes + Pool(kv.v).slot_bytes),
                           nullptr};
  if (dim <= 2 * kWarp) return launch<2>(dev, ctx, call);
  if (dim <= 4 * kWarp) return launch<4>(dev, ctx, call);
  return launch<8>(dev, ctx, call);
}

}  // namespace fathom
