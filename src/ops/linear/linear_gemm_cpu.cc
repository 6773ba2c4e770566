// Products of training: what linear() and its gradient multiply with while a tape is attached.
#include <algorithm>
#include <vector>

#include "ops/kernels/row_access.h"
#include "ops/linear/gemm.h"
#include "ops/linear/linear_kernel.h"
#include "ops/linear/matrix_rows.h"
#include "tensor/arena.h"

namespace fathom {
namespace {

Precision precision_of(DType weight) {
  return weight == DType::kF32 ? Precision::kF32 : Precision::kBf16;
}

GemmMatrix matrix(const Tensor& t) {
  return {t.raw(), t.stride(0), t.dtype() == DType::kBF16};
}

// The weights as gemm() reads them: f32 and bf16 where they are, other formats decoded to bf16 in the arena.
GemmMatrix readable(CpuBackend cpu, Context& ctx, const Tensor& weight) {
  if (weight.dtype() == DType::kF32 || weight.dtype() == DType::kBF16) return matrix(weight);
  const int64_t rows = weight.dim(0), width = weight.dim(1);
  auto* decoded = static_cast<uint16_t*>(ctx.arena().allocate(static_cast<size_t>(rows * width) * 2));
  const auto to_bf16 = row_kernels(cpu.isa).to_bf16;
  cpu.pool.parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t r = begin; r < end; ++r) {
      decode_matrix_row(weight, r, row.data());
      to_bf16(row.data(), decoded + r * width, width);
    }
  });
  return {decoded, width, true};
}

}  // namespace

void linear_gemm_kernel(CpuBackend cpu, Context& ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor& out) {
  const int64_t rows = present_rows(x), columns = weight.dim(0);
  cpu.counters.add({.weight_bytes = static_cast<uint64_t>(rows > 0 ? weight.nbytes() : 0)});
  // The bias is there first, and the product is added to it.
  if (bias) {
    cpu.pool.parallel_for(rows, std::max<int64_t>(1, 16384 / columns), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::copy_n(bias.data<float>(), columns, out.data<float>() + r * columns);
    });
  }
  gemm(cpu, ctx,
       {.layout = GemmLayout::kNT,
        .precision = precision_of(weight.dtype()),
        .m = rows,
        .n = columns,
        .k = weight.dim(1),
        .a = matrix(x),
        .b = matrix(weight),
        .c = out.data<float>(),
        .c_stride = columns,
        .beta = bias ? 1.0f : 0.0f});
}

void linear_dx_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, const Tensor& weight, float beta,
                      Tensor& dx) {
  const int64_t rows = present_rows(dy);
  if (rows == 0) return;
  const ArenaScope scope(ctx);
  cpu.counters.add({.weight_bytes = static_cast<uint64_t>(weight.nbytes())});
  gemm(cpu, ctx,
       {.layout = GemmLayout::kNN,
        .precision = precision_of(weight.dtype()),
        .m = rows,
        .n = weight.dim(1),
        .k = weight.dim(0),
        .a = matrix(dy),
        .b = readable(cpu, ctx, weight),
        .c = dx.data<float>(),
        .c_stride = dx.dim(1),
        .beta = beta});
}

void linear_dw_kernel(CpuBackend cpu, Context& ctx, const Tensor& dy, const Tensor& x, DType weight_type,
                      float beta, Tensor& dw) {
  gemm(cpu, ctx,
       {.layout = GemmLayout::kTN,
        .precision = precision_of(weight_type),
        .m = dy.dim(1),
        .n = x.dim(1),
        .k = present_rows(dy),
        .a = matrix(dy),
        .b = matrix(x),
        .c = dw.data<float>(),
        .c_stride = x.dim(1),
        .beta = beta});
}

void linear_db_kernel(CpuBackend cpu, Context&, const Tensor& dy, float beta, Tensor& db) {
  const int64_t rows = present_rows(dy), columns = dy.dim(1);
  float* sums = db.data<float>();
  cpu.pool.parallel_for(columns, 256, [&](int64_t begin, int64_t end) {
    if (beta == 0.0f) std::fill(sums + begin, sums + end, 0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = dy.data<float>() + r * columns;
      for (int64_t c = begin; c < end; ++c) sums[c] += row[c];
    }
  });
}

void round_rows_kernel(CpuBackend cpu, const Tensor& x, Tensor& out) {
  const int64_t width = x.dim(1);
  const auto to_bf16 = row_kernels(cpu.isa).to_bf16;
  cpu.pool.parallel_for(present_rows(x), std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t r = begin; r < end; ++r)
                            to_bf16(x.data<float>() + r * x.stride(0), out.data<uint16_t>() + r * width,
                                    width);
                        });
}

}  // namespace fathom
