// Log-probabilities of many requests: packed passes over the rows of many sequences.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "eval/encode.h"
#include "infer/feeder.h"

namespace fathom {

struct BatchOptions {
  int64_t rows = 512;  // of one pass. No result depends on it, nor on the number of sequences
  bool whole = false;  // the policy looks at whole prompts: nothing is cut in pieces, nothing shared
  std::vector<float> thresholds = {};  // (2L) of the budget that generation runs at; empty: the policy's rule
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(int64_t items)> on_progress = nullptr;  // finished since the last call
};

struct TextScore {
  double logprob = 0;  // sum over the scored tokens
  bool greedy = true;  // each of them is the most likely one
};

using ItemRequests = std::vector<TokenRequest>;

// As many items at a time as the cache has sequences, begun in `order`. The requests of one item share what
// they begin with, and so do items that follow each other in a sequence. Returns the scores of each item's
// requests; when cancelled, some are unfinished.
std::vector<std::vector<TextScore>> score_items(Feeder& feeder, std::span<const ItemRequests> items,
                                                std::span<const size_t> order, const BatchOptions& options);

}  // namespace fathom
