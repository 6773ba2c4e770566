// Nested lists of units, as the method `nested` and what measures it have them.
#pragma once

#include <span>
#include <vector>

#include "model/policy.h"
#include "ops/rows/list_prices.h"

namespace fathom {

// Which list leaves out which units, and what each costs.
struct ListPlan {
  ListCosts costs;
  std::vector<uint8_t> group;  // (2L): the first list without the unit, from 1; 0: every list has it
};

// One list for each share: units of the order go until at most that share of the block multiply-adds is left.
// Without an order there is no list.
ListPlan plan_lists(const ModelConfig& config, std::span<const float> shares, std::span<const int32_t> order,
                    SkippedKv skipped_kv, int64_t cost_context);

}  // namespace fathom
