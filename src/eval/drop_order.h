// The order in which the shallower models of a sweep lose their units: measured on text, kept in a folder.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "skip/harm_order.h"

namespace fathom {

struct DropOrderOptions {
  OrderSearch search = OrderSearch::kOnce;
  double until = 0.5;  // greedily: the share of the block multiply-adds at which it stops
  const std::atomic<bool>* cancel = nullptr;
};

struct DropOrder {
  std::vector<int32_t> units;  // (2L), the first to go first
  bool kept = false;           // nothing had to be measured
};

// The harm order (skip/harm_order.h) on these sequences of tokens. `folder` keeps what was measured
// (skip/measurements.h). Returns none when cancelled; another call goes on from there.
std::optional<DropOrder> drop_order(Context& ctx, const Model& model,
                                    std::span<const std::vector<int32_t>> sequences,
                                    const DropOrderOptions& options, const std::string& folder);

}  // namespace fathom
