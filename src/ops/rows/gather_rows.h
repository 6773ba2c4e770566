// The rows that run, side by side: what a branch computes on.
#pragma once

#include "tensor/rows.h"

namespace fathom {

// x: f32 (rows, d), f32 (rows) or i32 (rows) -> (capacity, …), the kept rows first. all(): x itself. none():
// zero rows.
Tensor gather_rows(Context& ctx, const Tensor& x, const RowSet& kept);

}  // namespace fathom
