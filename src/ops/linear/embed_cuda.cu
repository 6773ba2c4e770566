#include <algorithm>
#include <bit>

#include "ops/kernels/sort.cuh"
#include "ops/kernels/warp.cuh"
#include "ops/kernels/weight_formats.cuh"
#include "ops/linear/embed.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

struct EmbedCall {
  const int32_t* ids;
  const uint8_t* table;
  int64_t vocab, width, bytes;  // bytes of a row of the table
  float scale;
  float* out;
  int32_t* fault;
};

// A block per row.
template <class Format>
__global__ void embed_rows(EmbedCall call) {
  const int64_t row = blockIdx.x;
  int64_t id = call.ids[row];
  if (id < 0 || id >= call.vocab) {
    if (threadIdx.x == 0) report_fault(call.fault, CudaFault::kEmbedId);
    id = 0;
  }
  const uint8_t* from = call.table + id * call.bytes;
  float* to = call.out + row * call.width;
  for (int i = static_cast<int>(threadIdx.x); i < call.width; i += kThreads) {
    to[i] = Format::at(from, i / 32, i % 32) * call.scale;
  }
}

// Ids outside the table, which embed() has reported, become `vocab`: they sort last.
__global__ void number_rows(const int32_t* ids, int64_t rows, int64_t vocab, uint32_t* keys,
                            int32_t* numbers) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int64_t id = ids[row];
  keys[row] = static_cast<uint32_t>(id >= 0 && id < vocab ? id : vocab);
  numbers[row] = static_cast<int32_t>(row);
}

constexpr int kColumns = 128;

struct EmbedGradientCall {
  const uint32_t* ids;     // sorted
  const int32_t* numbers;  // the row that each was in; ascending among equal ids
  int64_t rows, vocab, width;
  float scale;
  const float* d;
  float* d_table;
};

// A block per sorted id and kColumns columns; that of the first of equal ids adds all their rows, in row
// order.
__global__ void add_equal_ids(EmbedGradientCall call) {
  int64_t at = blockIdx.x;
  const uint32_t id = call.ids[at];
  if (id >= call.vocab || (at > 0 && call.ids[at - 1] == id)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kColumns + threadIdx.x;
  const bool inside = column < call.width;
  const float* from = call.d + (inside ? column : 0);  // outside: read, and not stored
  float* to = call.d_table + id * call.width + column;
  float sum = inside ? *to : 0.0f;
  for (int count = kWarp; count == kWarp; at += kWarp) {
    const int64_t mine = at + lane;
    const bool equal = mine < call.rows && call.ids[mine] == id;
    const int32_t number = equal ? call.numbers[mine] : 0;
    count = __popc(__ballot_sync(kAllLanes, equal));  // the first lanes, because ids are sorted
#pragma unroll 8
    for (int i = 0; i < count; ++i) sum += call.scale * from[__shfl_sync(kAllLanes, number, i) * call.width];
  }
  if (inside) *to = sum;
}

}  // namespace

void embed_kernel(CudaBackend dev, const Tensor& ids, const Tensor& table, float scale, Tensor& out) {
  const int64_t rows = ids.dim(0), width = table.dim(1), bytes = row_bytes(table.dtype(), width);
  if (rows == 0 || width == 0) return;
  const EmbedCall call{ids.data<int32_t>(), table.data<uint8_t>(), table.dim(0), width, bytes, scale,
                       out.data<float>(),   dev.handle.fault};
  with_format(table.dtype(), [&](auto format) {
    embed_rows<decltype(format)><<<blocks_for(rows, 1), kThreads, 0, dev.handle.stream>>>(call);
  });
  check_launch("embed");
  dev.counters.add({.weight_bytes = static_cast<uint64_t>(rows * bytes)});
}

void embed_gradient_kernel(CudaBackend dev, Context& ctx, const Tensor& ids, float scale, const Tensor& d,
                           Tensor& d_table) {
  const int64_t rows = ids.dim(0), vocab = d_table.dim(0), width = d_table.dim(1);
  if (rows == 0 || width == 0) return;
  Tensor keys = Tensor::empty(ctx, DType::kI32, {2, rows}),
         numbers = Tensor::empty(ctx, DType::kI32, {2, rows});
  auto* key = keys.data<uint32_t>();
  auto* number = numbers.data<int32_t>();
  number_rows<<<blocks_for(rows, kThreads), kThreads, 0, dev.handle.stream>>>(ids.data<int32_t>(), rows,
                                                                              vocab, key, number);
  check_launch("the gradient of embed");
  sort_pairs(dev, ctx, key, key + rows, number, number + rows, rows,
             std::bit_width(static_cast<uint64_t>(vocab)));
  const EmbedGradientCall call{key + rows,      number + rows,        rows, vocab, width, scale,
                               d.data<float>(), d_table.data<float>()};
  const dim3 blocks(blocks_for(rows, 1), blocks_for(width, kColumns));
  add_equal_ids<<<blocks, kColumns, 0, dev.handle.stream>>>(call);
  check_launch("the gradient of embed");
}

}  // namespace fathom
