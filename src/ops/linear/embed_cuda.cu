#include <algorithm>

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

}  // namespace fathom
