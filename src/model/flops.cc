#include "model/flops.h"

#include <algorithm>

namespace fathom {

DenseWork dense_work(const ModelConfig& config, int64_t rows, int64_t past, int64_t logit_rows) {
  const int64_t q_width = config.heads * config.head_dim, kv_width = config.kv_heads * config.head_dim;
  const int64_t projections =
      config.width * (2 * q_width + 2 * kv_width) + 3 * config.width * config.ffn_width;
  int64_t pairs = 0;  // visible (query, key), all layers
  for (int32_t window : config.windows) {
    for (int64_t position = past; position < past + rows; ++position) {
      pairs += window > 0 ? std::min<int64_t>(position + 1, window) : position + 1;
    }
  }
  DenseWork work;
  work.block_madds = static_cast<uint64_t>(config.layers * rows * projections + 2 * pairs * q_width);
  work.output_madds = static_cast<uint64_t>(logit_rows * config.vocab * config.width);
  return work;
}

}  // namespace fathom
