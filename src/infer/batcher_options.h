// What the batcher is told beside what a user of the engine says.
#pragma once

#include "infer/budgets.h"
#include "infer/fathom.h"

namespace fathom {

struct BatcherOptions : EngineOptions {
  const Budgets* budgets = nullptr;      // for requests with a budget; outlives the engine
  std::vector<float> thresholds = {};    // (2L) of requests without a budget; empty: the method's own rule
  std::vector<int32_t> harm_order = {};  // for requests that draft by it: measure_harm_order()
  // Every pass records which rows ran which units. Without it tokens have no depth, answers no work, the
  // engine no unit_rows, and no request may speculate or ask for its units.
  bool records = true;
  std::function<Moment()> now = std::chrono::steady_clock::now;
};

}  // namespace fathom
