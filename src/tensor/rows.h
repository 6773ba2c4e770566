// Which rows a unit runs on. The number of kept rows is known only where the data lives: on a GPU, asking for
// it on the host would be a synchronisation per layer. Host code sees the capacity and, for all() and none(),
// that fact.
#pragma once

#include "tensor/tensor.h"

namespace fathom {

// i32 (1): the count of a set that is about to be selected. Not initialised.
Tensor new_count(Context& ctx);
// The count of a set that the host has made itself.
Tensor known_count(Context& ctx, int32_t count);

class RowSet {
 public:
  static RowSet all(int64_t rows) { return RowSet(Kind::kAll, rows, {}, {}); }
  static RowSet none(int64_t rows) { return RowSet(Kind::kNone, rows, {}, {}); }
  // ids: i32 (capacity), ascending, of which the first `count` (i32 (1), same device) are valid.
  static RowSet some(Tensor ids, Tensor count) {
    const int64_t capacity = ids.dim(0);
    return RowSet(Kind::kSome, capacity, std::move(ids), std::move(count));
  }

  bool is_all() const { return kind_ == Kind::kAll; }
  bool is_none() const { return kind_ == Kind::kNone; }
  int64_t capacity() const { return capacity_; }  // rows of a compacted tensor
  const Tensor& ids() const { return ids_; }      // defined for some() only
  const Tensor& count() const { return count_; }  // defined for some() only

 private:
  enum class Kind : uint8_t { kAll, kNone, kSome };
  RowSet(Kind kind, int64_t capacity, Tensor ids, Tensor count)
      : kind_(kind), capacity_(capacity), ids_(std::move(ids)), count_(std::move(count)) {}

  Kind kind_;
  int64_t capacity_;
  Tensor ids_, count_;
};

}  // namespace fathom
