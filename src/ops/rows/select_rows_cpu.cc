#include <algorithm>
#include <cmath>

#include "ops/kernels/row_access.h"
#include "ops/rows/select_rows.h"

namespace fathom {

// One thread: a few thousand comparisons at most, and each id's place depends on all before it.
void select_rows_kernel(CpuBackend, const Tensor& score, Compare compare, const Tensor& threshold,
                        Tensor& ids, Tensor& count) {
  const float *s = score.data<float>(), *t = threshold.data<float>();
  const int64_t step = threshold.dim(0) == 1 ? 0 : 1;
  int32_t kept = 0;
  for (int64_t r = 0; r < present_rows(score); ++r) {
    // Written as what is not skipped: NaN is kept.
    const bool skip = compare == Compare::kAbove ? s[r] <= t[r * step] : s[r] < t[r * step];
    if (!skip) ids.data<int32_t>()[kept++] = static_cast<int32_t>(r);
  }
  count.data<int32_t>()[0] = kept;
}

void select_rows_kernel(CpuBackend, const Tensor& score, const SequenceThresholds& thresholds, Tensor& ids,
                        Tensor& count) {
  const float *s = score.data<float>(), *table = thresholds.table.data<float>() + thresholds.column;
  const int32_t* sequence = thresholds.sequence.data<int32_t>();
  const int64_t sequences = thresholds.table.dim(0), columns = thresholds.table.dim(1);
  int32_t kept = 0;
  for (int64_t r = 0; r < present_rows(score); ++r) {
    const float of_table = sequence[r] >= 0 && sequence[r] < sequences ? table[sequence[r] * columns] : NAN;
    const float threshold = std::isnan(of_table) ? thresholds.own : std::max(of_table, thresholds.least);
    const bool skip = s[r] <= threshold;  // NaN is kept
    if (!skip) ids.data<int32_t>()[kept++] = static_cast<int32_t>(r);
  }
  count.data<int32_t>()[0] = kept;
}

RowSet known_set(CpuBackend, const RowSet& kept) {
  const int64_t count = KeptRows(kept).count;
  return count == 0 ? RowSet::none(kept.capacity()) : count == kept.capacity() ? RowSet::all(count) : kept;
}

void complement_kernel(CpuBackend, const RowSet& kept, Tensor& ids, Tensor& count) {
  const KeptRows rows(kept);
  int32_t others = 0;
  int64_t next = 0;
  for (int64_t r = 0; r < ids.dim(0); ++r) {
    if (next < rows.count && rows[next] == r) {
      ++next;
    } else {
      ids.data<int32_t>()[others++] = static_cast<int32_t>(r);
    }
  }
  count.data<int32_t>()[0] = others;
}

void row_mask_kernel(CpuBackend, const RowSet& kept, Tensor& out) {
  const KeptRows rows(kept);
  std::fill_n(out.data<float>(), out.numel(), 0.0f);
  for (int64_t i = 0; i < rows.count; ++i) out.data<float>()[rows[i]] = 1.0f;
}

}  // namespace fathom
