#pragma once

#include "tensor/tensor.h"

namespace fathom {

// ids: i32 (rows), each in [0, vocab). table: (vocab, d), any float or block dtype -> f32 (rows, d), times
// scale.
Tensor embed(Context& ctx, const Tensor& ids, const Tensor& table, float scale = 1.0f);

}  // namespace fathom
