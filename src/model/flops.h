// The closed forms that the kernels' counters are checked against, and that ratios against dense are taken
// from.
#pragma once

#include "base/counters.h"
#include "model/model.h"

namespace fathom {

struct DenseWork {
  uint64_t block_madds = 0;   // attention and FFN branches of all layers
  uint64_t output_madds = 0;  // the LM head
};

// Of one pass over `rows` new rows of one sequence that already holds `past` entries; `logit_rows` of them
// through the output matrix.
DenseWork dense_work(const ModelConfig& config, int64_t rows, int64_t past, int64_t logit_rows);

}  // namespace fathom
