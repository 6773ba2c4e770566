#pragma once

#include "tensor/rows.h"

namespace fathom {

// below: f32 (rows, …), fresh: f32 (capacity, …) -> below with row kept[i] replaced by fresh[i]: keys and
// values copied from the layer below where a row was skipped. all(): fresh itself. none(): below itself
// (fresh may be undefined). The gradient goes to fresh at the kept rows, to below elsewhere.
Tensor merge_rows(Context& ctx, const Tensor& below, const RowSet& kept, const Tensor& fresh);

}  // namespace fathom
