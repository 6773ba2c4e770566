// Cached sequences of one model under one policy: the cache, the policy's state and the feeder over both.
#pragma once

#include <memory>
#include <vector>

#include "infer/feeder.h"

namespace fathom {

class Sequences {
 public:
  struct Options {
    KvCacheOptions cache;                // key_bias follows from the policy
    std::vector<float> thresholds = {};  // (2L) of every sequence; empty: the policy's own rule
  };
  // The model and the policy outlive it.
  Sequences(Context& ctx, const Model& model, const SkipPolicy& policy, const Options& options);

  Feeder& feeder() { return feeder_; }
  KvCache& cache() { return cache_; }
  PolicyState& state() { return *state_; }

 private:
  KvCache cache_;
  std::unique_ptr<PolicyState> state_;
  Feeder feeder_;
};

}  // namespace fathom
