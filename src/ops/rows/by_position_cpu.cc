#include "base/format.h"
#include "ops/kernels/row_set_cpu.h"
#include "ops/rows/by_position.h"

namespace fathom {

void before_position_kernel(CpuBackend, const Tensor& positions, int64_t limit, Tensor& out) {
  for (int64_t r = 0; r < present_rows(positions); ++r)
    out.data<float>()[r] = positions.data<int32_t>()[r] < limit ? 1.0f : 0.0f;
}

void store_by_position_kernel(CpuBackend, Tensor& table, const Tensor& values, const RowSet& rows,
                              const Tensor& sequence, const Tensor& positions) {
  const KeptRows kept(rows);
  const int64_t sequences = table.dim(0), places = table.dim(1);
  for (int64_t i = 0; i < kept.count; ++i) {
    const int64_t s = sequence.data<int32_t>()[kept[i]], p = positions.data<int32_t>()[kept[i]];
    if (s < 0 || s >= sequences || p < 0 || p >= places) {
      fail("store_by_position: the table has {} sequences of {} positions, got sequence {}, position {}",
           sequences, places, s, p);
    }
    table.data<float>()[s * places + p] = values.data<float>()[i];
  }
}

}  // namespace fathom
