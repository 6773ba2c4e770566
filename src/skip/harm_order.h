// How much each unit matters: drop it alone and see how far the model's output moves.
#pragma once

#include <span>
#include <vector>

#include "skip/method.h"

namespace fathom {

// Multiply-adds that skipping the unit avoids for one row at a context of `context` tokens, under the given
// rule for its keys and values.
double avoided_madds(const ModelConfig& config, Unit unit, SkippedKv skipped_kv, int64_t context);

// The same of a unit of 2L (there is no layer below the first: what would be copied is projected), and what
// the unit takes when it runs.
double avoided_madds_at(const ModelConfig& config, int64_t unit, SkippedKv skipped_kv, int64_t context);
double unit_madds(const ModelConfig& config, int64_t unit, int64_t context);

// KL(full depth ‖ without the unit), mean over the batches' rows that want logits, for each of the 2L units.
std::vector<double> unit_harm(Context& ctx, const PrepareInput& input);

// Harm over the multiply-adds that skipping avoids, for each of the 2L units; infinite in protected layers.
std::vector<double> harm_rate(Context& ctx, const PrepareInput& input, int64_t cost_context);

// How many of the first units of an order must go so that at most `share` of the block multiply-adds is left.
size_t units_beyond(const ModelConfig& config, std::span<const int32_t> order, double share,
                    SkippedKv skipped_kv, int64_t cost_context = 1024);

// The 2L units, least harm per cost first; those of protected layers last.
std::vector<int64_t> order_of(std::span<const double> rate);
std::vector<int64_t> harm_order(Context& ctx, const PrepareInput& input, int64_t cost_context = 1024);

}  // namespace fathom
