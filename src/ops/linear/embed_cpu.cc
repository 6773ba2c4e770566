#include "base/format.h"
#include "ops/kernels/row_access.h"
#include "ops/linear/embed.h"
#include "ops/linear/matrix_rows.h"

namespace fathom {

void embed_kernel(CpuBackend dev, const Tensor& ids, const Tensor& table, float scale, Tensor& out) {
  const int64_t rows = ids.dim(0), vocab = table.dim(0), width = table.dim(1);
  const int64_t bytes = row_bytes(table.dtype(), width);
  const int32_t* id = ids.data<int32_t>();
  for (int64_t r = 0; r < rows; ++r) {
    if (id[r] < 0 || id[r] >= vocab)
      fail("embed: token id must be in [0, {}), got {} in row {}", vocab, id[r], r);
  }
  dev.pool.parallel_for(rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* y = out.data<float>() + r * width;
      decode_matrix_row(table, id[r], y);
      if (scale == 1.0f) continue;
      for (int64_t i = 0; i < width; ++i) y[i] *= scale;
    }
  });
  dev.counters.add({.weight_bytes = static_cast<uint64_t>(rows * bytes)});
}

// A token may stand in many rows: each column is one thread's, in row order.
void embed_gradient_kernel(CpuBackend dev, Context&, const Tensor& ids, float scale, const Tensor& d,
                           Tensor& d_table) {
  const int64_t rows = ids.dim(0), width = d_table.dim(1);
  const int32_t* id = ids.data<int32_t>();
  constexpr int64_t kColumns = 64;
  dev.pool.parallel_for(width, kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r) {
      float* to = d_table.data<float>() + id[r] * width;
      const float* from = d.data<float>() + r * width;
      for (int64_t i = begin; i < end; ++i) to[i] += scale * from[i];
    }
  });
}

}  // namespace fathom
