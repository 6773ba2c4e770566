#include <algorithm>
#include <cstring>

#include "ops/row_access.h"
#include "ops/row_set_cpu.h"
#include "ops/rows.h"

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
    // Ids ascend: `next` is the first kept row not before r.
    int64_t next = rows.ids ? std::lower_bound(rows.ids, rows.ids + rows.count, begin) - rows.ids : begin;
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

}  // namespace fathom
