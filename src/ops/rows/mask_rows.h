// Straight-through estimators: what the forward pass decides, a score learns as if it had multiplied.
#pragma once

#include "tensor/rows.h"

namespace fathom {

// x: f32 (rows, d) -> x where kept, 0 elsewhere. score: f32 (rows), undefined: no score learns.
// Straight-through: d score_r = ⟨dy_r, x_r⟩ for every row, kept or not; dx_r = dy_r where kept, else 0.
Tensor mask_rows(Context& ctx, const Tensor& x, const RowSet& kept, const Tensor& score = {});

// x: f32 (rows, d), p: f32 (rows) -> x · (1 + p − sg p): x itself (the same memory), dx = dy,
// dp_r = ⟨dy_r, x_r⟩ (SkipLayer's eq. 4).
Tensor scale_through(Context& ctx, const Tensor& x, const Tensor& p);

}  // namespace fathom
