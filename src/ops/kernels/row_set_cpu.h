// The kept rows as the CPU sees them. Only *_cpu.cc includes this: other code may not read the count.
#pragma once

#include <algorithm>

#include "tensor/rows.h"

namespace fathom {

// Rows of dimension 0 that are there: all of them, unless the tensor is compacted.
inline int64_t present_rows(const Tensor& tensor) {
  return tensor.row_count() ? *tensor.row_count() : tensor.dim(0);
}

// Elements of a dense tensor that are there.
inline int64_t present_elements(const Tensor& tensor) {
  return tensor.dim(0) > 0 ? tensor.numel() / tensor.dim(0) * present_rows(tensor) : 0;
}

struct KeptRows {
  int64_t count;
  const int32_t* ids;  // null: row i is row i
  explicit KeptRows(const RowSet& rows)
      : count(rows.is_all()    ? rows.capacity()
              : rows.is_none() ? 0
                               : rows.count().data<int32_t>()[0]),
        ids(rows.is_all() || rows.is_none() ? nullptr : rows.ids().data<int32_t>()) {}
  int64_t operator[](int64_t i) const { return ids ? ids[i] : i; }
  // Which of them is the first not before `row`: ids ascend.
  int64_t first_from(int64_t row) const {
    return ids ? std::lower_bound(ids, ids + count, row) - ids : std::min(row, count);
  }
};

}  // namespace fathom
