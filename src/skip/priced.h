// What calibration needs of the priced routers: costs, prices, and the thresholds that a price stands for.
#pragma once

#include <span>
#include <vector>

#include "model/policy.h"

namespace fathom {

inline constexpr int64_t kPricePoints = 19;  // shares 0.05, 0.10 … 0.95

// Multiply-adds avoided by skipping the unit, over those of the mean unit. unit: of 2L
double unit_cost(const ModelConfig& config, int64_t unit, SkippedKv skipped_kv, int64_t cost_context);

// The price at which the routers keep that share of the block multiply-adds, as training has tracked it:
// between neighbouring points linear, at share 1 zero. prices: the first kPricePoints of a priced policy's
// controllers(); points that training never saw are left out, and a price of 0 means that it saw none.
float price_for(std::span<float* const> prices, float share);

// (2L) θ = price · cost: a unit runs where its score is above.
std::vector<float> price_thresholds(const ModelConfig& config, float price, SkippedKv skipped_kv,
                                    int64_t cost_context);

}  // namespace fathom
