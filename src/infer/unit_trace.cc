#include "infer/unit_trace.h"

#include "ops/assign.h"
#include "ops/select_rows.h"

namespace fathom {

void UnitTrace::begin(Context& ctx, int64_t rows, int64_t units) {
  marks_ = Tensor::empty(ctx, DType::kF32, {units, rows});
  marked_.clear();
  marked_.reserve(static_cast<size_t>(units));
  host_.resize(static_cast<size_t>(units * rows));
  units_run_.assign(static_cast<size_t>(rows), 0);
  rows_run_.assign(static_cast<size_t>(units), 0);
}

void UnitTrace::add(Context& ctx, int64_t unit, const RowSet& kept) {
  const int64_t rows = marks_.dim(1);
  if (kept.is_all()) {
    for (int32_t& units : units_run_) ++units;
    rows_run_[static_cast<size_t>(unit)] = rows;
  } else if (!kept.is_none()) {
    Tensor marks = marks_.rows(unit, 1).reshape({rows});
    assign(ctx, marks, row_mask(ctx, kept, rows));
    marked_.push_back(unit);
  }
}

void UnitTrace::end(Context& ctx) {
  if (!marked_.empty()) copy_to_host(ctx, marks_, host_);
  const size_t rows = units_run_.size();
  for (const int64_t unit : marked_) {
    for (size_t row = 0; row < rows; ++row) {
      const bool ran = host_[static_cast<size_t>(unit) * rows + row] > 0;
      units_run_[row] += ran;
      rows_run_[static_cast<size_t>(unit)] += ran;
    }
  }
  marks_ = {};
}

}  // namespace fathom
