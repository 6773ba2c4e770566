// How much each unit matters: drop it and see how far the model's output moves.
#pragma once

#include <span>
#include <vector>

#include "skip/method.h"

namespace fathom {

// Multiply-adds that skipping the unit avoids for one row at a context of `context` tokens, under the given
// rule for its keys and values.
double avoided_madds(const ModelConfig& config, Unit unit, SkippedKv skipped_kv, int64_t context);

// The same of a unit of 2L (where there is no layer to copy from, keys and values are projected), and what
// the unit takes when it runs.
double avoided_madds_at(const ModelConfig& config, int64_t unit, SkippedKv skipped_kv, int64_t context);
double unit_madds(const ModelConfig& config, int64_t unit, int64_t context);

// KL(full depth ‖ without the unit), mean over the batches' rows that want logits, for each of the 2L units.
// gone: (2L), 1: units that do not run either; their own harm is infinite. Empty: none.
std::vector<double> unit_harm(Context& ctx, const PrepareInput& input, std::span<const uint8_t> gone = {});

// Harm over the multiply-adds that skipping avoids, for each of the 2L units; infinite in protected layers.
std::vector<double> harm_rate(Context& ctx, const PrepareInput& input, int64_t cost_context);

// The share of the block multiply-adds that is left when the units of an order up to each have gone.
std::vector<double> shares_left(const ModelConfig& config, std::span<const int32_t> order,
                                SkippedKv skipped_kv, int64_t cost_context = 1024);
// Returns whether the next unit must go. left: the share before it goes; share: the most that may stay.
inline bool goes_at(double share, double left) {
  return left > share * (1 + 1e-9);
}

// How many of the first units of an order must go so that at most `share` of the block multiply-adds is left.
// left: shares_left() of the order.
size_t units_gone(std::span<const double> left, double share);
size_t units_beyond(const ModelConfig& config, std::span<const int32_t> order, double share,
                    SkippedKv skipped_kv, int64_t cost_context = 1024);

// The 2L units, least harm per cost first; those of protected layers last.
std::vector<int64_t> order_of(std::span<const double> rate);
std::vector<int64_t> harm_order(Context& ctx, const PrepareInput& input, int64_t cost_context = 1024);

// The same, measured again after each unit that goes, without those that are gone: of two units that can
// stand in for each other only the first is harmless. Quadratic in the units, so that it stops when at most
// `until` of the block multiply-adds is left; the rest follows in the order of the last measurement.
std::vector<int64_t> greedy_harm_order(Context& ctx, const PrepareInput& input, double until,
                                       int64_t cost_context = 1024);

enum class OrderSearch : uint8_t { kOnce, kGreedily };
std::span<const std::string_view> enum_names(OrderSearch);  // "once", "greedily"

// One or the other.
std::vector<int64_t> found_order(Context& ctx, const PrepareInput& input, OrderSearch search, double until,
                                 int64_t cost_context);

}  // namespace fathom
