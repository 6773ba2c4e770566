// Nested lists of units: at which price a row leaves each list for the next shorter one. List 0 runs
// everything, list k leaves out what list k − 1 does and more. At a price λ a row takes the list of least
// loss + λ · cost.
#pragma once

#include <array>

#include "tensor/tensor.h"

namespace fathom {

inline constexpr int64_t kMostLists = 32;  // beside list 0

struct ListCosts {
  int32_t lists = 0;                            // K
  std::array<float, kMostLists + 1> left = {};  // cost of lists 0 … K, falling
};

struct ListRules {
  ListCosts costs;
  int32_t band = 0;          // lists on either side of the mean row's that a row may choose; 0: all
  int32_t protect_rows = 0;  // positions before this one always take list 0
};

struct ListPrices {
  Tensor prices;  // f32 (K, rows): row k − 1 has the prices above which rows take list k or a later one
  Tensor most;    // f32 (K, rows): no row that may leave list 0 has a price above this one
};

// predicted: f32 (rows, K), the loss of each row with lists 1 … K; list 0 has none. mean: f32 (K), that of
// the mean row. positions: i32 (rows). A row's bits depend on that row alone. Beyond half of the way to the
// band's edge prices are pressed together, so that rows do not meet at the edge. No gradients.
ListPrices list_prices(Context& ctx, const Tensor& predicted, const Tensor& mean, const Tensor& positions,
                       const ListRules& rules);

// The same for rows whose list is given: at price 0 a row takes list ⌊level⌋. level: f32 (rows).
ListPrices level_prices(Context& ctx, const Tensor& level, const Tensor& positions, int32_t lists,
                        int32_t protect_rows);

// prices: f32 (K, rows). Returns f32 (rows, K): 1 at the list that the row takes at price 0; list 0 has no
// column.
Tensor chosen_lists(Context& ctx, const Tensor& prices);

}  // namespace fathom
