// Products of training on a GPU: what linear() and its gradient multiply with while a tape is attached. The
// products are cuBLASLt's, over bound() rows of compacted tensors.
#include <cuda_bf16.h>

#include "ops/kernels/warp.cuh"
#include "ops/kernels/weight_formats.cuh"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear_kernel.h"
#include "tensor/cuda_util.cuh"

namespace fathom {
namespace {

constexpr int kThreads = 256;

GemmMatrix matrix(const Tensor& t) {
  return {t.raw(), t.stride(0), t.dtype() == DType::kBF16};
}

uint64_t madds(int64_t rows, const Shape& weight) {
  return static_cast<uint64_t>(rows * weight.numel());
}

// A block per kThreads elements of a row.
__global__ void fill_with_bias(const float* bias, int64_t columns, unsigned int pieces, float* out) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t i = static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x;
  if (i < columns) out[row * columns + i] = bias[i];
}

// Four elements, or those before the width, of each thread: one after another in a row.
struct Rounding {
  const float* x;
  int64_t present, width, step;  // rows past `present` become zeros
  __nv_bfloat16* out;            // (rows, width)
};

struct alignas(8) FourBf16 {
  __nv_bfloat16 value[4];
};

// kFour: rows of both begin where four elements can be read and written together.
template <bool kFour>
__global__ void round_rows(Rounding call, unsigned int pieces) {
  const int64_t row = blockIdx.x / pieces;
  const int64_t i = (static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x) * 4;
  if (i >= call.width) return;
  const float* from = call.x + row * call.step + i;
  __nv_bfloat16* to = call.out + row * call.width + i;
  const bool there = row < call.present;
  if constexpr (kFour) {
    const float4 four = there ? *reinterpret_cast<const float4*>(from) : float4{};
    *reinterpret_cast<FourBf16*>(to) = {__float2bfloat16_rn(four.x), __float2bfloat16_rn(four.y),
                                        __float2bfloat16_rn(four.z), __float2bfloat16_rn(four.w)};
  } else {
    for (int64_t j = 0; j < 4 && i + j < call.width; ++j) to[j] = __float2bfloat16_rn(there ? from[j] : 0.0f);
  }
}

bool divides(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// The weights in bf16. A block per kThreads elements of a row.
template <class Format>
__global__ void decode_rows(const uint8_t* weight, int64_t bytes, int64_t width, unsigned int pieces,
                            __nv_bfloat16* out) {
  const int64_t row = blockIdx.x / pieces;
  const int i = static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x);
  if (i < width) out[row * width + i] = __float2bfloat16_rn(Format::at(weight + row * bytes, i / 32, i % 32));
}

// x in the type that a product with a weight of that type multiplies.
Tensor factor_of(CudaBackend cuda, Context& ctx, const Tensor& x, DType weight_type) {
  if (weight_type == DType::kF32 || x.dtype() == DType::kBF16) return x;
  Tensor rounded = Tensor::empty(ctx, DType::kBF16, x.shape()).counted_like(x);
  round_rows_kernel(cuda, x, rounded);
  return rounded;
}

// Zeros in the rows between the count and bound(), for sums over bound() rows. Nothing reads them otherwise.
void clear_past_count(CudaBackend cuda, Tensor rows) {
  const int64_t present = present_rows(cuda, rows), launched = bound(cuda, rows);
  if (present == launched || rows.dim(1) == 0) return;
  const auto element = static_cast<size_t>(row_bytes(rows.dtype(), 1));
  const auto step = static_cast<size_t>(rows.stride(0)) * element;
  cuda_check(cudaMemset2DAsync(rows.data<std::byte>() + static_cast<size_t>(present) * step, step, 0,
                               static_cast<size_t>(rows.dim(1)) * element,
                               static_cast<size_t>(launched - present), cuda.handle.stream),
             "cudaMemset2D");
}

constexpr int kSumColumns = 32, kSumLanes = kThreads / kSumColumns;
constexpr int64_t kSumRows = 256;  // of a block

// A block's rows of dy, kSumColumns columns: each lane takes every kSumLanes-th row, ascending; then the
// lanes in order. partial: (blocks of rows, columns).
__global__ void sum_row_blocks(const float* dy, const int32_t* count, int64_t rows, int64_t columns,
                               float* partial) {
  __shared__ float sums[kSumLanes][kSumColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x % kSumColumns;
  const int lane = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t present = count ? *count : rows, first = static_cast<int64_t>(blockIdx.y) * kSumRows;
  const int64_t last = first + kSumRows < present ? first + kSumRows : present;
  float sum = 0.0f;
  if (column < columns) {
    for (int64_t r = first + lane; r < last; r += kSumLanes) sum += dy[r * columns + column];
  }
  sums[lane][threadIdx.x % kSumColumns] = sum;
  __syncthreads();
  if (lane > 0 || column >= columns) return;
  for (int other = 1; other < kSumLanes; ++other) sum += sums[other][threadIdx.x];
  partial[blockIdx.y * columns + column] = sum;
}

// A warp per column: lane l adds blocks l, l + kWarp, …, then the lanes.
__global__ void sum_blocks(const float* partial, int64_t blocks, int64_t columns, float beta, float* db) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (column >= columns) return;
  float sum = 0.0f;
  for (int64_t block = threadIdx.x % kWarp; block < blocks; block += kWarp)
    sum += partial[block * columns + column];
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) db[column] = beta == 0.0f ? sum : fmaf(beta, db[column], sum);
}

}  // namespace

void linear_gemm_kernel(CudaBackend cuda, Context& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor& out) {
  const int64_t present = present_rows(cuda, x), rows = bound(cuda, x), columns = weight.dim(0);
  if (present == 0 || columns == 0) return;
  cuda.counters.add(
      {.madds = madds(present, weight.shape()), .weight_bytes = static_cast<uint64_t>(weight.nbytes())});
  if (has_few_outputs(weight)) return narrow_products_kernel(cuda, x, weight, bias, out);
  // The bias is there first, and the product is added to it.
  if (bias) {
    const unsigned int pieces = blocks_for(columns, kThreads),
                       blocks = static_cast<unsigned int>(rows) * pieces;
    fill_with_bias<<<blocks, kThreads, 0, cuda.handle.stream>>>(bias.data<float>(), columns, pieces,
                                                                out.data<float>());
    check_launch("linear (bias)");
  }
  cuda_gemm(cuda, {.layout = GemmLayout::kNT,
                   .m = rows,
                   .n = columns,
                   .k = weight.dim(1),
                   .a = matrix(factor_of(cuda, ctx, x, weight.dtype())),
                   .b = matrix(weight),
                   .c = out.raw(),
                   .c_stride = out.stride(0),
                   .c_bf16 = out.dtype() == DType::kBF16,
                   .beta = bias ? 1.0f : 0.0f});
}

void add_linear_kernel(CudaBackend cuda, const Tensor& h, const Tensor& x, const Tensor& weight,
                       Tensor& out) {
  const int64_t rows = x.dim(0);
  cuda.counters.add({.madds = madds(rows, weight.shape()),
                     .weight_bytes = static_cast<uint64_t>(rows > 0 ? weight.nbytes() : 0),
                     .unit_rows = static_cast<uint64_t>(rows)});
  cuda_gemm(cuda, {.layout = GemmLayout::kNT,
                   .m = rows,
                   .n = weight.dim(0),
                   .k = weight.dim(1),
                   .a = matrix(x),
                   .b = matrix(weight),
                   .c = out.raw(),
                   .c_stride = out.dim(1),
                   .beta = 1.0f,
                   .plus = h.raw()});
}

void linear_dx_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, const Tensor& weight, float beta,
                      Tensor& dx) {
  const int64_t present = present_rows(cuda, dy);
  if (present == 0) return;
  cuda.counters.add(
      {.madds = madds(present, weight.shape()), .weight_bytes = static_cast<uint64_t>(weight.nbytes())});
  if (has_few_outputs(weight)) return narrow_dx_kernel(cuda, dy, weight, beta, dx);
  const Tensor factor = weight_factor(cuda, ctx, weight);
  cuda_gemm(cuda, {.layout = GemmLayout::kNN,
                   .m = bound(cuda, dy),
                   .n = weight.dim(1),
                   .k = weight.dim(0),
                   .a = matrix(dy),
                   .b = matrix(factor),
                   .c = dx.raw(),
                   .c_stride = dx.dim(1),
                   .c_bf16 = dx.dtype() == DType::kBF16,
                   .beta = beta});
}

void linear_dw_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, const Tensor& x, DType weight_type,
                      float beta, Tensor& dw) {
  const int64_t present = present_rows(cuda, dy);
  cuda.counters.add({.madds = madds(present, dw.shape())});
  if (weight_type == DType::kF32 && has_few_outputs(dw)) return narrow_dw_kernel(cuda, ctx, dy, x, beta, dw);
  const Tensor factor = factor_of(cuda, ctx, x, weight_type);
  // The sum ends with the rows that are there: those up to bound() need no zeros.
  cuda_gemm(cuda, {.layout = GemmLayout::kTN,
                   .m = dy.dim(1),
                   .n = x.dim(1),
                   .k = present,
                   .a = matrix(dy),
                   .b = matrix(factor),
                   .c = dw.raw(),
                   .c_stride = x.dim(1),
                   .beta = beta});
}

void linear_db_kernel(CudaBackend cuda, Context& ctx, const Tensor& dy, float beta, Tensor& db) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1), blocks = (rows + kSumRows - 1) / kSumRows;
  if (columns == 0) return;
  Tensor partial = Tensor::empty(ctx, DType::kF32, {blocks, columns});
  if (blocks > 0) {
    const dim3 grid(blocks_for(columns, kSumColumns), static_cast<unsigned int>(blocks));
    sum_row_blocks<<<grid, kThreads, 0, cuda.handle.stream>>>(dy.data<float>(), dy.row_count(), rows, columns,
                                                              partial.data<float>());
    check_launch("linear (gradient of the bias)");
  }
  sum_blocks<<<blocks_for(columns, kThreads / kWarp), kThreads, 0, cuda.handle.stream>>>(
      partial.data<float>(), blocks, columns, beta, db.data<float>());
  check_launch("linear (gradient of the bias)");
}

void round_rows_kernel(CudaBackend cuda, const Tensor& x, Tensor& out) {
  const int64_t rows = bound(cuda, x), width = x.dim(1);
  if (rows == 0 || width == 0) return;
  const Rounding call{x.data<float>(), present_rows(cuda, x), width, x.stride(0), out.data<__nv_bfloat16>()};
  const bool four = width % 4 == 0 && x.stride(0) % 4 == 0 && divides(x.raw(), sizeof(float4));
  const unsigned int pieces = blocks_for(width, 4 * kThreads),
                     blocks = static_cast<unsigned int>(rows) * pieces;
  (four ? round_rows<true> : round_rows<false>)<<<blocks, kThreads, 0, cuda.handle.stream>>>(call, pieces);
  check_launch("linear (rounded rows)");
}

Tensor weight_factor(CudaBackend cuda, Context& ctx, const Tensor& weight) {
  if (weight.dtype() == DType::kF32 || weight.dtype() == DType::kBF16) return weight;
  const int64_t rows = weight.dim(0), width = weight.dim(1);
  Tensor decoded = Tensor::empty(ctx, DType::kBF16, weight.shape());
  if (decoded.numel() == 0) return decoded;
  const unsigned int pieces = blocks_for(width, kThreads), blocks = static_cast<unsigned int>(rows) * pieces;
  with_format(weight.dtype(), [&](auto format) {
    decode_rows<decltype(format)><<<blocks, kThreads, 0, cuda.handle.stream>>>(
        weight.data<uint8_t>(), row_bytes(weight.dtype(), width), width, pieces,
        decoded.data<__nv_bfloat16>());
  });
  check_launch("linear (decoded weights)");
  return decoded;
}

Tensor dy_factor(CudaBackend cuda, Context& ctx, const Tensor& dy, DType weight_type) {
  return factor_of(cuda, ctx, dy, weight_type);
}

Tensor zeroed_factor(CudaBackend cuda, Context& ctx, const Tensor& x, DType weight_type) {
  if (weight_type == DType::kF32 || x.dtype() == DType::kBF16) clear_past_count(cuda, x);
  return factor_of(cuda, ctx, x, weight_type);
}

}  // namespace fathom
