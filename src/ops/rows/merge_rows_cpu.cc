#include <cstring>

#include "ops/kernels/row_access.h"
#include "ops/rows/merge_rows.h"

namespace fathom {
namespace {

int64_t width_of(const Tensor& x) {
  return x.dim(0) > 0 ? x.numel() / x.dim(0) : 0;
}

// source(row, which of the kept it is or −1): where the row's values are; null: zeros.
template <class Fn>
void fill_rows(CpuBackend dev, const RowSet& kept, Tensor& out, Fn source) {
  const KeptRows rows(kept);
  const int64_t width = width_of(out);
  const size_t bytes = static_cast<size_t>(width) * sizeof(float);
  dev.pool.parallel_for(present_rows(out), row_grain(width), [&](int64_t begin, int64_t end) {
    int64_t next = rows.first_from(begin);
    for (int64_t r = begin; r < end; ++r) {
      float* to = out.data<float>() + r * width;
      const bool is_kept = next < rows.count && rows[next] == r;
      const float* from = source(r, is_kept ? next++ : -1);
      if (from) {
        std::memcpy(to, from, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  });
}

}  // namespace

void merge_rows_kernel(CpuBackend dev, const Tensor& below, const RowSet& kept, const Tensor& fresh,
                       Tensor& out) {
  const int64_t width = width_of(below);
  fill_rows(dev, kept, out, [&](int64_t row, int64_t at) {
    return at >= 0 ? fresh.data<float>() + at * width : below.data<float>() + row * width;
  });
}

void merge_rows_dbelow_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_below) {
  const int64_t width = width_of(d);
  fill_rows(dev, kept, d_below,
            [&](int64_t row, int64_t at) { return at >= 0 ? nullptr : d.data<float>() + row * width; });
}

void merge_rows_dfresh_kernel(CpuBackend dev, const RowSet& kept, const Tensor& d, Tensor& d_fresh) {
  const KeptRows rows(kept);
  const int64_t width = width_of(d);
  fill_rows(dev, RowSet::none(0), d_fresh,
            [&](int64_t i, int64_t) { return i < rows.count ? d.data<float>() + rows[i] * width : nullptr; });
}

}  // namespace fathom
