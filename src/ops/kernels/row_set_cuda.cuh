// The kept rows as a kernel sees them: the host launches over the capacity, threads past the count return.
#pragma once

#include <cstdint>

#include "tensor/rows.h"

namespace fathom {

struct DeviceRows {
  int64_t capacity;
  const int32_t* ids;        // null: row i is row i
  const int32_t* count_ptr;  // null: capacity rows
  explicit DeviceRows(const RowSet& rows)
      : capacity(rows.is_none() ? 0 : rows.capacity()),
        ids(rows.is_all() || rows.is_none() ? nullptr : rows.ids().data<int32_t>()),
        count_ptr(rows.is_all() || rows.is_none() ? nullptr : rows.count().data<int32_t>()) {}

  __device__ int64_t count() const { return count_ptr ? *count_ptr : capacity; }
  __device__ int64_t operator[](int64_t i) const { return ids ? ids[i] : i; }
};

// The place of the first kept row that is not before `row`; the count where all are. Ids ascend.
__device__ inline int64_t first_kept(const DeviceRows& kept, int64_t row) {
  int64_t begin = 0, end = kept.count();
  if (!kept.ids) return row < end ? row : end;
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (kept.ids[middle] < row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Where `row` stands among the kept ones, or -1.
__device__ inline int64_t find_kept(const DeviceRows& kept, int64_t row) {
  const int64_t place = first_kept(kept, row);
  return place < kept.count() && kept[place] == row ? place : -1;
}

// A tensor as rows of its last dimension; of a compacted one, only those that are there.
struct DeviceFloatRows {
  const float* data;
  int64_t rows, width, step;  // rows: launched over
  const int32_t* count_ptr;   // of dimension 0; null: every row is there (a vector is one row)
  int64_t per_count;          // rows for each one counted
  explicit DeviceFloatRows(const Tensor& t)
      : data(t.data<float>()),
        rows(t.dim(-1) > 0 ? t.numel() / t.dim(-1) : 0),
        width(t.dim(-1)),
        step(t.rank() == 2 ? t.stride(0) : t.dim(-1)),
        count_ptr(t.rank() == 1 ? nullptr : t.row_count()),
        per_count(t.dim(0) > 0 ? rows / t.dim(0) : 0) {}

  __device__ int64_t count() const { return count_ptr ? *count_ptr * per_count : rows; }
  __device__ bool has(int64_t row) const { return row < count(); }
};

}  // namespace fathom
