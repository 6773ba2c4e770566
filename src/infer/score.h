// The log-probability of every token of a text.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "infer/feeder.h"
#include "infer/log_probs.h"

namespace fathom {

struct ScoreOptions {
  int64_t chunk =
      0;  // tokens fed at a time; 0: as many as keep the logits small. The result does not depend on it.
  int64_t top = 0;  // how many of the most likely tokens to give for each place
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(int64_t tokens)> on_progress = nullptr;  // tokens fed since the last call
};

struct ScoreResult : LogProbs {
  bool cancelled = false;

  // Over tokens `from` and later (the first never counts).
  double mean_nll(int64_t from = 1) const;
};

// Empties the sequence first. An empty list, or one longer than the context, is a UserError.
ScoreResult score(Feeder& feeder, std::span<const int32_t> ids, const ScoreOptions& options = {},
                  int32_t sequence = 0);

}  // namespace fathom
