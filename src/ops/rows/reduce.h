// Means and sums. Each has one fixed order, whatever the number of threads.
#pragma once

#include <span>

#include "tensor/rows.h"

namespace fathom {

// x: f32 (rows, d) -> (rows). A row's bits depend on that row alone.
Tensor mean_columns(Context& ctx, const Tensor& x);

// x: f32 (rows), weights: f32 (rows), undefined: 1 -> (1): Σ w x / Σ w over the rows that are there; 0 if
// Σ w = 0. No gradient to the weights.
Tensor mean_rows(Context& ctx, const Tensor& x, const Tensor& weights = {});

// p: f32 (rows) -> (1): the share of the rows that are kept. Straight-through, its gradient is
// mean_rows(p)'s.
Tensor kept_share(Context& ctx, const RowSet& kept, const Tensor& p);

// scalars: f32 (1) each -> (1): Σ weights[i] · scalars[i].
Tensor weighted_sum(Context& ctx, std::span<const Tensor> scalars, std::span<const float> weights);

// x: f32 (rows) -> (1): the mean squared distance to the mean (divides by N) of the rows that are there; 0 if
// there are none.
Tensor variance_rows(Context& ctx, const Tensor& x);

}  // namespace fathom
