#include <cassert>
#include <cstring>

#include "ops/row_access.h"
#include "ops/row_set_cpu.h"
#include "ops/rows.h"

namespace fathom {

// Rows of `out` past the count are not written.
void gather_rows_kernel(CpuBackend dev, const Tensor& x, const RowSet& kept, Tensor& out) {
  const KeptRows rows(kept);
  const int64_t width = x.rank() == 1 ? 1 : x.dim(1), step = x.stride(0);  // both types have four bytes
  dev.pool.parallel_for(rows.count, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      assert(rows[i] >= 0 && rows[i] < x.dim(0));
      std::memcpy(out.data<std::byte>() + i * width * 4, x.data<std::byte>() + rows[i] * step * 4,
                  static_cast<size_t>(width) * 4);
    }
  });
}

}  // namespace fathom
