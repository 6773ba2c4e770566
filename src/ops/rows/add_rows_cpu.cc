#include <cstring>

#include "ops/kernels/row_access.h"
#include "ops/kernels/row_set_cpu.h"
#include "ops/rows/add_rows.h"

namespace fathom {

void add_rows_kernel(CpuBackend dev, const Tensor& h, const RowSet& kept, const Tensor& branch, Tensor& out) {
  const FloatRows from(h), more(branch);
  const KeptRows rows(kept);
  const auto add = row_kernels(dev.isa).add;
  const int64_t width = from.width;
  dev.counters.add({.unit_rows = static_cast<uint64_t>(rows.count)});
  if (out.raw() == h.raw()) {
    const int64_t step = from.step;
    dev.pool.parallel_for(rows.count, row_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        add(from[rows[i]], more[i], out.data<float>() + rows[i] * step, width);
    });
    return;
  }
  dev.pool.parallel_for(from.rows, row_grain(width), [&](int64_t begin, int64_t end) {
    int64_t next = rows.first_from(begin);
    for (int64_t r = begin; r < end; ++r) {
      float* y = out.data<float>() + r * width;
      if (next < rows.count && rows[next] == r) {
        add(from[r], more[next++], y, width);
      } else {
        std::memcpy(y, from[r], static_cast<size_t>(width) * sizeof(float));
      }
    }
  });
}

void add_rows_gradient_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_branch) {
  const KeptRows rows(kept);
  const int64_t width = d.dim(1);
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  dev.pool.parallel_for(present_rows(d_branch), row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* to = d_branch.data<float>() + i * width;
      if (i < rows.count) {
        std::memcpy(to, d.data<float>() + rows[i] * width, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  });
}

}  // namespace fathom
