// Thresholds from the scores themselves. Only the rows that are there count; a NaN counts as +infinity, so
// that no row is skipped because of a NaN. No gradients.
#pragma once

#include <span>

#include "tensor/tensor.h"

namespace fathom {

// A share is a float: 0.3f of ten rows is 3.0000001 of them, and three are meant.
inline constexpr double kShareRounding = 1e-6;

// What the quantile of scores that are all equal is: that score, or −∞, which every score is above.
enum class IfEqual : uint8_t { kScore, kBelowAll };

// scores: f32 (rows); valid: f32 (rows), counted where > 0, undefined: all -> (1): the exact quantile q in
// [0, 1], linear between neighbours (numpy's default). At least one score must count.
Tensor quantile(Context& ctx, const Tensor& scores, float q, const Tensor& valid = {},
                IfEqual if_equal = IfEqual::kScore);

// scores, weights ≥ 0: f32 (n) -> (shares): for each share the smallest of the scores v such that the weights
// of scores > v sum to at most share · total.
Tensor weighted_quantile(Context& ctx, const Tensor& scores, const Tensor& weights,
                         std::span<const float> shares);

// scores: f32 (rows), sequence: i32 (rows) -> f32 (rows): 1 for the ⌈share · T⌉ highest of each sequence's T
// rows (ties: the earlier row first), else 0.
Tensor top_share_by_sequence(Context& ctx, const Tensor& scores, const Tensor& sequence, float share);

}  // namespace fathom
