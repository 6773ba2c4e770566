// The rows that run, side by side: what a branch computes on.
#pragma once

#include "tensor/rows.h"

namespace fathom {

// x: f32 (rows, d), f32 (rows) or i32 (rows) -> (capacity, …), the kept rows first. all(): x itself, of any
// of these types with its gradient. none(): zero rows. bf16 (rows, d) of even d, too, without a gradient.
Tensor gather_rows(Context& ctx, const Tensor& x, const RowSet& kept);

}  // namespace fathom
