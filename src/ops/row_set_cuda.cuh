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

}  // namespace fathom
