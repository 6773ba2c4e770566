// What every op over rows needs: its inputs as rows of floats, and the table of loops for the context's
// instruction set.
#pragma once

#include "ops/kernels/row_kernels.h"
#include "ops/kernels/row_set_cpu.h"
#include "tensor/context.h"
#include "tensor/tensor.h"

namespace fathom {

inline const RowKernels& row_kernels(Isa isa) {
#if defined(__aarch64__)
  if (isa != Isa::kScalar) return kRowKernelsDotprod;
#elif defined(__x86_64__)
  if (isa != Isa::kScalar) return kRowKernelsAvx2;
#endif
  static_cast<void>(isa);
  return kRowKernelsScalar;
}

// A tensor as rows of its last dimension. Two-dimensional tensors may be strided (columns of a wider one).
struct FloatRows {
  const float* data;
  int64_t rows, width, step;
  explicit FloatRows(const Tensor& t)
      : data(t.data<float>()),
        rows(t.numel() > 0 ? t.rank() == 1 ? 1 : t.numel() / t.dim(0) / t.dim(-1) * present_rows(t) : 0),
        width(t.dim(-1)),
        step(t.rank() == 2 ? t.stride(0) : t.dim(-1)) {}
  const float* operator[](int64_t row) const { return data + row * step; }
};

// Elements per task of a loop that does little with each.
inline constexpr int64_t kElementGrain = 16384;

// f32, at least one dimension, dense or two-dimensional; a UserError otherwise.
void expect_rows(const Tensor& tensor, const char* op, const char* name);

// Rows per task: work of at least some microseconds, so that the one row of a decode step wakes no other
// thread.
inline int64_t row_grain(int64_t width) {
  return width >= 8192 ? 1 : 8192 / (width > 0 ? width : 1);
}

}  // namespace fathom
