// A branch's result joins the residual in the rows that it was computed from.
#pragma once

#include "tensor/rows.h"

namespace fathom {

// h: f32 (rows, d), branch: f32 (capacity, d) -> h with branch[i] added to row kept[i]. none(): h itself.
Tensor add_rows(Context& ctx, const Tensor& h, const RowSet& kept, const Tensor& branch);

// h becomes h + branch: in place (the rows that are not kept are not even read), unless a tape may still need
// the old one: while one records, h becomes a new tensor.
void add_rows_to(Context& ctx, Tensor& h, const RowSet& kept, const Tensor& branch);

}  // namespace fathom
