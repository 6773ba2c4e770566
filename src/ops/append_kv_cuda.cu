#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ops/append_kv.h"
#include "ops/row_set_cuda.cuh"
#include "ops/warp.cuh"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 128;

struct EntryLists {
  int32_t *entries, *positions, *lengths;
  float* bias;  // null: none
  int64_t sequences, capacity, slots;
  const int32_t* page_table;
  int64_t page, pages;
};

struct Rows {
  DeviceRows kept;
  const int32_t *positions, *sequence;  // (batch rows)
};

// A thread per row: the row becomes entry length + (earlier rows of its sequence). slots[i]: where its key
// and value go, or -1. Lengths change only in store_rows, when every thread here has read them.
__global__ void list_entries(EntryLists lists, Rows rows, int32_t* slots, int32_t* fault) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows.kept.count()) return;
  slots[i] = -1;
  const int32_t seq = rows.sequence[rows.kept[i]];
  if (seq < 0 || seq >= lists.sequences) return report_fault(fault, CudaFault::kSequence);
  int64_t entry = lists.lengths[seq];
  for (int64_t j = 0; j < i; ++j) entry += rows.sequence[rows.kept[j]] == seq;
  if (entry >= lists.capacity || entry / lists.page >= lists.pages)
    return report_fault(fault, CudaFault::kSequenceFull);
  const int64_t slot =
      lists.page_table[seq * lists.pages + entry / lists.page] * lists.page + entry % lists.page;
  if (slot < 0 || slot >= lists.slots) return report_fault(fault, CudaFault::kSlot);
  const int64_t at = seq * lists.capacity + entry;
  lists.entries[at] = slots[i] = static_cast<int32_t>(slot);
  lists.positions[at] = rows.positions[rows.kept[i]];
  if (lists.bias) lists.bias[at] = 0.0f;  // what an entry that was taken back had left there
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
__global__ void store_rows(Pool keys, Pool values, int64_t width, Rows rows, const int32_t* slots,
                           int32_t* lengths) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunks = (width + kWarp - 1) / kWarp;
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  const int64_t row = warp / chunks, chunk = warp % chunks, i = chunk * kWarp + lane;
  if (row >= rows.kept.count() || slots[row] < 0) return;
  if (blockIdx.y == 0 && i == 0) atomicAdd(lengths + rows.sequence[rows.kept[row]], 1);
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

void append_kv_kernel(CudaBackend dev, KvView& kv, const Tensor& page_table, int64_t page, const Tensor& k,
                      const Tensor& v, const RowSet& kept, const Tensor& positions, const Tensor& sequence,
                      Tensor& slots) {
  const Rows rows{DeviceRows(kept), positions.data<int32_t>(), sequence.data<int32_t>()};
  const int64_t capacity = rows.kept.capacity, width = kv.k.dim(1) * kv.k.dim(2);
  if (capacity == 0 || width == 0) return;
  const EntryLists lists{kv.entries.data<int32_t>(),
                         kv.positions.data<int32_t>(),
                         kv.lengths.data<int32_t>(),
                         kv.bias.defined() ? kv.bias.data<float>() : nullptr,
                         kv.entries.dim(0),
                         kv.entries.dim(1),
                         std::min(kv.k.dim(0), kv.v.dim(0)),
                         page_table.data<int32_t>(),
                         page,
                         page_table.dim(1)};
  list_entries<<<blocks_for(capacity, kThreads), kThreads, 0, dev.handle.stream>>>(
      lists, rows, slots.data<int32_t>(), dev.handle.fault);
  check_launch("append_kv (entries)");
  const dim3 grid(blocks_for(capacity * ((width + kWarp - 1) / kWarp), kThreads / kWarp), 2);
  store_rows<<<grid, kThreads, 0, dev.handle.stream>>>(pool_of(kv.k, k), pool_of(kv.v, v), width, rows,
                                                       slots.data<int32_t>(), lists.lengths);
  check_launch("append_kv (rows)");
}

}  // namespace fathom
