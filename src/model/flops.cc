#include "model/flops.h"

#include <algorithm>
#include <map>

namespace fathom {

DenseWork dense_work(const ModelConfig& config, int64_t rows, int64_t past, int64_t logit_rows) {
  const int64_t q_width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
  const int64_t projections =
      config.width * (2 * q_width + 2 * kv_width) + 3 * config.width * config.ffn_width;
  int64_t pairs = 0, entries = 0;  // visible (query, key) pairs, and keys, of all layers
  for (int32_t window : config.windows) {
    for (int64_t position = past; position < past + rows; ++position) {
      pairs += window > 0 ? std::min<int64_t>(position + 1, window) : position + 1;
    }
    const int64_t first = window > 0 ? std::max<int64_t>(0, past - window + 1) : 0;
    entries += past + rows - first;
  }
  DenseWork work;
  work.block_madds = static_cast<uint64_t>(config.layers * rows * projections + 2 * pairs * q_width);
  work.output_madds = static_cast<uint64_t>(logit_rows * config.vocab * config.width);
  work.cache_entries = static_cast<uint64_t>(entries);
  work.unit_rows = static_cast<uint64_t>(2 * config.layers * rows);
  return work;
}

DenseWork dense_work(const ModelConfig& config, std::span<const BatchRow> rows) {
  struct Length {
    int64_t rows = 0, logit_rows = 0;
  };
  std::map<int32_t, Length> sequences;
  for (const BatchRow& row : rows) {
    Length& length = sequences[row.sequence];
    ++length.rows;
    length.logit_rows += row.wants_logits;
  }
  DenseWork all;
  for (const auto& [sequence, length] : sequences) {
    const DenseWork one = dense_work(config, length.rows, 0, length.logit_rows);
    all.block_madds += one.block_madds;
    all.output_madds += one.output_madds;
    all.cache_entries += one.cache_entries;
    all.unit_rows += one.unit_rows;
  }
  return all;
}

uint64_t row_block_madds(const ModelConfig& config, int64_t position, std::span<const uint8_t> units) {
  const int64_t q_width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
  int64_t madds = 0;
  for (size_t layer = 0; layer < config.windows.size(); ++layer) {
    const int64_t window = config.windows[layer];
    const int64_t keys = window > 0 ? std::min<int64_t>(position + 1, window) : position + 1;
    if (units[2 * layer]) madds += config.width * (2 * q_width + 2 * kv_width) + 2 * keys * q_width;
    if (units[2 * layer + 1]) madds += 3 * config.width * config.ffn_width;
  }
  return static_cast<uint64_t>(madds);
}

uint64_t dense_weight_bytes(const Model& model, int64_t rows, bool logits) {
  const ModelWeights& weights = model.weights;
  int64_t bytes = rows * row_bytes(weights.embedding.dtype(), model.config.width);
  for (const BlockWeights& b : weights.blocks) {
    for (const Tensor* matrix : {&b.q, &b.k, &b.v, &b.o, &b.gate, &b.up, &b.down}) bytes += matrix->nbytes();
  }
  return static_cast<uint64_t>(bytes + (logits ? weights.output.nbytes() : 0));
}

}  // namespace fathom
