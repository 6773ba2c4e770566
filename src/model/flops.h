// The closed forms that the kernels' counters are checked against, and that ratios against dense are taken
// from.
#pragma once

#include <span>

#include "base/counters.h"
#include "model/batch.h"
#include "model/model.h"

namespace fathom {

struct DenseWork {
  uint64_t block_madds = 0;    // attention and FFN branches of all layers
  uint64_t output_madds = 0;   // the LM head
  uint64_t cache_entries = 0;  // keys and values read, each once, all layers
  uint64_t unit_rows = 0;      // rows of both units of all layers
};

// Of one pass over `rows` new rows of one sequence that already holds `past` entries; `logit_rows` of them
// through the output matrix.
DenseWork dense_work(const ModelConfig& config, int64_t rows, int64_t past, int64_t logit_rows);

// Of one pass over these rows, which are whole sequences from their start.
DenseWork dense_work(const ModelConfig& config, std::span<const BatchRow> rows);

// Multiply-adds of the blocks for the row at `position` that runs these units (2L; 1: it runs), as if it read
// every position before it.
uint64_t row_block_madds(const ModelConfig& config, int64_t position, std::span<const uint8_t> units);

// Weights that a pass reads, whatever the number of sequences in it: every matrix once, and one row of the
// embedding for each of `rows`.
uint64_t dense_weight_bytes(const Model& model, int64_t rows, bool logits);

}  // namespace fathom
