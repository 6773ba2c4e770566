// A branch's result joins the residual in the rows that it was computed from.
#pragma once

#include "tensor/rows.h"

namespace fathom {

// h: f32 (rows, d), branch: f32, or on a GPU bf16 with d a multiple of 4, (capacity, d) -> h with branch[i]
// added to row kept[i]. none(): h itself. score: f32 (rows), undefined: no score learns. Straight-through, of
// each kept row: d score_r = ⟨dh_r, branch_r⟩.
Tensor add_rows(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch,
                const Tensor& score = {});

// h becomes h + branch: in place (the rows that are not kept are not even read), unless a tape may still need
// the old one: while one records, h becomes a new tensor where it is not the only handle.
void add_rows_to(Context& ctx, Tensor& h, const RowSet& kept, const Tensor& branch, const Tensor& score = {});

}  // namespace fathom
