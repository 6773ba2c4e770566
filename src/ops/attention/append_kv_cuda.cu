#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/attention/append_kv.h"
#include "ops/kernels/row_set_cuda.cuh"
#include "ops/kernels/warp.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

struct EntryLists {
  int32_t *entries, *positions, *lengths;
  float* bias;  // null: none
  int64_t sequences, capacity, slots;
  const int32_t* page_table;
  int32_t* taken;
  int64_t page, pages;
  const int32_t *below_entries, *below_positions, *below_lengths;  // null: nothing is shared
};

struct Rows {
  DeviceRows kept;
  const int32_t *positions, *sequence;  // (batch rows)
  const float* bias;                    // (batch rows); null: 0
  int64_t total;
};

// Where the layer below keeps a row, or -1: positions ascend.
__device__ int64_t shared_slot(const EntryLists& lists, int64_t seq, int32_t position) {
  const int64_t first = seq * lists.capacity, length = lists.below_lengths[seq];
  int64_t begin = 0, end = length;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (lists.below_positions[first + middle] < position)
      begin = middle + 1;
    else
      end = middle;
  }
  const bool there = begin < length && lists.below_positions[first + begin] == position;
  return there ? lists.below_entries[first + begin] : -1;
}

// A thread per row that gets an entry (the kept ones; all of them where skipped rows share the entry below):
// it becomes entry length + (earlier such rows of its sequence), and takes slot taken + (earlier kept rows of
// its sequence) when it is kept. slots[i]: where kept row i's key and value go, or -1. Counts change only in
// advance_counts, when every thread here has read them.
__global__ void list_entries(EntryLists lists, Rows rows, int32_t* slots, int32_t* fault) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool shares = lists.below_entries != nullptr;
  if (n >= (shares ? rows.total : rows.kept.count())) return;
  const int64_t row = shares ? n : rows.kept[n], kept = shares ? find_kept(rows.kept, row) : n;
  if (kept >= 0) slots[kept] = -1;
  const int32_t seq = rows.sequence[row];
  if (seq < 0 || seq >= lists.sequences) return report_fault(fault, CudaFault::kSequence);
  int64_t entry = lists.lengths[seq], taken = lists.taken[seq];
  for (int64_t j = 0; j < kept; ++j) taken += rows.sequence[rows.kept[j]] == seq;
  if (shares) {
    for (int64_t j = 0; j < n; ++j) entry += rows.sequence[j] == seq;
  } else {
    entry += taken - lists.taken[seq];
  }
  if (entry >= lists.capacity || (kept >= 0 && taken / lists.page >= lists.pages))
    return report_fault(fault, CudaFault::kSequenceFull);
  const int64_t slot =
      kept < 0 ? shared_slot(lists, seq, rows.positions[row])
               : lists.page_table[seq * lists.pages + taken / lists.page] * lists.page + taken % lists.page;
  if (slot < 0 || slot >= lists.slots) return report_fault(fault, CudaFault::kSlot);
  const int64_t at = seq * lists.capacity + entry;
  lists.entries[at] = static_cast<int32_t>(slot);
  if (kept >= 0) slots[kept] = static_cast<int32_t>(slot);
  lists.positions[at] = rows.positions[row];
  // Not only when there is one: an entry that was taken back may have left its own.
  if (lists.bias) lists.bias[at] = rows.bias ? rows.bias[row] : 0.0f;
}

// Only for what was listed: a row of its own that found no slot is no entry.
__global__ void advance_counts(EntryLists lists, Rows rows, const int32_t* slots) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool shares = lists.below_entries != nullptr;
  if (n >= (shares ? rows.total : rows.kept.count())) return;
  const int64_t row = shares ? n : rows.kept[n], kept = shares ? find_kept(rows.kept, row) : n;
  if (kept >= 0 && slots[kept] < 0) return;
  const int32_t seq = rows.sequence[row];
  if (seq < 0 || seq >= lists.sequences) return;
  atomicAdd(lists.lengths + seq, 1);
  if (kept >= 0) atomicAdd(lists.taken + seq, 1);
}

struct Pool {
  const float* from;  // (capacity, width)
  uint8_t* to;        // (slots, width) in `type`
  DType type;
  int64_t bytes;  // of a slot
};

// One block of 32 by a warp, in the rounding of the CPU: to the nearest whole number, halves to even.
__device__ void store_q8_0(uint8_t* block, float value, int lane) {
  const float scale = warp_max(fabsf(value)) / 127.0f;
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  const float magic = 12582912.0f;  // 1.5 · 2²³: the sum rounds to a whole number
  if (lane == 0) *reinterpret_cast<__half*>(block) = __float2half_rn(scale);
  block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(fmaf(value, inverse, magic) - magic));
}

// A warp per 32 elements of a row's heads; blockIdx.y: keys, values.
__global__ void store_rows(Pool keys, Pool values, int64_t width, Rows rows, const int32_t* slots) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunks = (width + kWarp - 1) / kWarp;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int64_t row = warp / chunks, chunk = warp % chunks, i = chunk * kWarp + lane;
  if (row >= rows.kept.count() || slots[row] < 0) return;
  const Pool& pool = blockIdx.y == 0 ? keys : values;
  uint8_t* to = pool.to + slots[row] * pool.bytes;
  const float value = i < width ? pool.from[row * width + i] : 0.0f;
  if (pool.type == DType::kQ8_0) return store_q8_0(to + chunk * 34, value, lane);  // a head is whole blocks
  if (i >= width) return;
  if (pool.type == DType::kF16) {
    reinterpret_cast<__half*>(to)[i] = __float2half_rn(value);
  } else if (pool.type == DType::kBF16) {
    reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(value);
  } else {
    reinterpret_cast<float*>(to)[i] = value;
  }
}

Pool pool_of(Tensor& pool, const Tensor& rows) {
  return {rows.data<float>(), pool.data<uint8_t>(), pool.dtype(),
          pool.dim(1) * row_bytes(pool.dtype(), pool.dim(2))};
}

}  // namespace

void append_kv_kernel(CudaBackend dev, KvView& kv, KvPages& pages, const Tensor& k, const Tensor& v,
                      const RowSet& kept, const Tensor& positions, const Tensor& sequence,
                      const AppendExtras& extras, Tensor& slots) {
  const Rows rows{DeviceRows(kept), positions.data<int32_t>(), sequence.data<int32_t>(),
                  extras.bias ? extras.bias.data<float>() : nullptr, positions.dim(0)};
  const int64_t listed = extras.below ? rows.total : rows.kept.capacity;
  const int64_t capacity = rows.kept.capacity, width = kv.k.dim(1) * kv.k.dim(2);
  if (listed == 0 || width == 0) return;
  const auto below = [&](Tensor KvView::*list) {
    return extras.below ? (extras.below->*list).data<int32_t>() : nullptr;
  };
  const EntryLists lists{kv.entries.data<int32_t>(),
                         kv.positions.data<int32_t>(),
                         kv.lengths.data<int32_t>(),
                         kv.bias.defined() ? kv.bias.data<float>() : nullptr,
                         kv.entries.dim(0),
                         kv.entries.dim(1),
                         std::min(kv.k.dim(0), kv.v.dim(0)),
                         pages.table.data<int32_t>(),
                         pages.taken.data<int32_t>(),
                         pages.page,
                         pages.table.dim(1),
                         below(&KvView::entries),
                         below(&KvView::positions),
                         below(&KvView::lengths)};
  list_entries<<<blocks_for(listed, kThreads), kThreads, 0, dev.handle.stream>>>(
      lists, rows, slots.data<int32_t>(), dev.handle.fault);
  check_launch("append_kv (entries)");
  advance_counts<<<blocks_for(listed, kThreads), kThreads, 0, dev.handle.stream>>>(lists, rows,
                                                                                   slots.data<int32_t>());
  check_launch("append_kv (counts)");
  if (capacity == 0) return;
  const dim3 grid(blocks_for(capacity * ((width + kWarp - 1) / kWarp), kThreads / kWarp), 2);
  store_rows<<<grid, kThreads, 0, dev.handle.stream>>>(pool_of(kv.k, k), pool_of(kv.v, v), width, rows,
                                                       slots.data<int32_t>());
  check_launch("append_kv (rows)");
}

}  // namespace fathom
