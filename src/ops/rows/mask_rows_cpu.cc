#include <cstring>

#include "ops/kernels/row_access.h"
#include "ops/rows/mask_rows.h"

namespace fathom {

void mask_rows_kernel(CpuBackend dev, const Tensor& x, const RowSet& kept, Tensor& out) {
  const FloatRows in(x);
  const KeptRows rows(kept);
  const size_t bytes = static_cast<size_t>(in.width) * sizeof(float);
  dev.pool.parallel_for(in.rows, row_grain(in.width), [&](int64_t begin, int64_t end) {
    int64_t next = rows.first_from(begin);
    for (int64_t r = begin; r < end; ++r) {
      float* to = out.data<float>() + r * in.width;
      if (next < rows.count && rows[next] == r) {
        std::memcpy(to, in[r], bytes);
        ++next;
      } else {
        std::memset(to, 0, bytes);
      }
    }
  });
}

}  // namespace fathom
