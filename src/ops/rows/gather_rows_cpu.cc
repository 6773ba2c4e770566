#include <cassert>
#include <cstring>

#include "ops/kernels/row_access.h"
#include "ops/kernels/row_set_cpu.h"
#include "ops/rows/gather_rows.h"

namespace fathom {

// Rows of `out` past the count are not written.
void gather_rows_kernel(CpuBackend dev, const Tensor& x, const RowSet& kept, Tensor& out) {
  const KeptRows rows(kept);
  const int64_t width = x.rank() == 1 ? 1 : x.dim(1);
  const int64_t bytes = row_bytes(x.dtype(), width), step = row_bytes(x.dtype(), x.stride(0));
  dev.pool.parallel_for(rows.count, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      assert(rows[i] >= 0 && rows[i] < x.dim(0));
      std::memcpy(out.data<std::byte>() + i * bytes, x.data<std::byte>() + rows[i] * step,
                  static_cast<size_t>(bytes));
    }
  });
}

void gather_rows_gradient_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& sum) {
  const KeptRows rows(kept);
  const int64_t width = d.rank() == 1 ? 1 : d.dim(1);
  dev.pool.parallel_for(rows.count, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* to = sum.data<float>() + rows[i] * width;
      const float* from = d.data<float>() + i * width;
      for (int64_t j = 0; j < width; ++j) to[j] += from[j];
    }
  });
}

void spread_rows_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& dx) {
  const KeptRows rows(kept);
  const int64_t width = d.rank() == 1 ? 1 : d.dim(1);
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  dev.pool.parallel_for(present_rows(dx), row_grain(width), [&](int64_t begin, int64_t end) {
    int64_t next = rows.first_from(begin);
    for (int64_t r = begin; r < end; ++r) {
      float* to = dx.data<float>() + r * width;
      if (next < rows.count && rows[next] == r) {
        std::memcpy(to, d.data<float>() + next++ * width, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  });
}

}  // namespace fathom
