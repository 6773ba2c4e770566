// Keys and values of many sequences: pages of one pool shared by all layers and sequences, and per layer and
// sequence the list of entries that exist, each with its own position.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "ops/kv_view.h"

namespace fathom {

struct KvCacheOptions {
  int64_t sequences = 1;
  int64_t context = 0;  // entries per sequence and layer at most; 0: the model's
  DType k_type = DType::kF16, v_type = DType::kF16;
  bool key_bias = false;  // room for one with each entry (SkipPolicy::has_key_bias)
};

class KvCache {
 public:
  static constexpr int64_t kPage = 64;  // entries

  KvCache(Context& ctx, const ModelConfig& config, const KvCacheOptions& options);

  int64_t sequences() const { return options_.sequences; }
  int64_t context() const { return options_.context; }

  // Makes room for `rows` more rows of a sequence in every layer, before the pass that appends them. More
  // than the context is a UserError.
  void reserve(Context& ctx, int32_t sequence, int64_t rows);
  int64_t rows(int32_t sequence) const {
    return rows_[static_cast<size_t>(sequence)];
  }  // fed so far: the next position

  // Forgets the entries at `position` and after; 0 empties the sequence.
  void truncate(Context& ctx, int32_t sequence, int64_t position);

  KvView& layer(int64_t index) { return layers_[static_cast<size_t>(index)].view; }
  const Tensor& page_table(int64_t layer) const { return layers_[static_cast<size_t>(layer)].page_table; }

  int64_t bytes_per_entry() const;  // of one layer
  int64_t bytes_held() const;       // pages in use

 private:
  struct Layer {
    KvView view;
    Tensor page_table;                        // i32 (sequences, pages)
    std::vector<std::vector<int32_t>> pages;  // per sequence, the same on the host
  };
  void write_page_entry(Context& ctx, Layer& layer, int32_t sequence, int64_t index, int32_t page);

  KvCacheOptions options_;
  std::vector<Layer> layers_;
  std::vector<int32_t> free_pages_;
  std::vector<int64_t> rows_;
  int64_t pages_ = 0;
};

}  // namespace fathom
