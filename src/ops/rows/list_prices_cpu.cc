#include "ops/kernels/row_access.h"
#include "ops/rows/list_prices_row.h"

namespace fathom {

void list_prices_kernel(CpuBackend dev, const Tensor& predicted, const Tensor& mean, const Tensor& positions,
                        const ListRules& rules, ListPrices& out) {
  const PlainListRules plain_rules = plain(rules);
  const int64_t rows = predicted.dim(0), lists = plain_rules.lists;
  float mean_prices[kMostLists];
  critical_prices(plain_rules, mean.data<float>(), mean_prices);
  dev.pool.parallel_for(rows, row_grain(lists * lists), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float prices[kMostLists], most[kMostLists];
      critical_prices(plain_rules, predicted.data<float>() + r * lists, prices);
      press_into_band(plain_rules, mean_prices, prices, most);
      const bool stays = positions.data<int32_t>()[r] < plain_rules.protect_rows;
      for (int64_t g = 0; g < lists; ++g) {
        out.prices.data<float>()[g * rows + r] = stays ? INFINITY : prices[g];
        out.most.data<float>()[g * rows + r] = stays ? INFINITY : most[g];
      }
    }
  });
}

void level_prices_kernel(CpuBackend, const Tensor& level, const Tensor& positions, int32_t protect_rows,
                         ListPrices& out) {
  const int64_t rows = level.dim(0);
  for (int64_t g = 0; g < out.prices.dim(0); ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      const bool stays = positions.data<int32_t>()[r] < protect_rows;
      const auto list = static_cast<float>(g + 1);
      out.prices.data<float>()[g * rows + r] = stays ? INFINITY : list - level.data<float>()[r];
      out.most.data<float>()[g * rows + r] = stays ? INFINITY : list;
    }
  }
}

void chosen_lists_kernel(CpuBackend, const Tensor& prices, Tensor& out) {
  const int64_t lists = prices.dim(0), rows = prices.dim(1);
  const float* p = prices.data<float>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t g = 0; g < lists; ++g) {
      const bool here = p[g * rows + r] <= 0 && (g + 1 == lists || p[(g + 1) * rows + r] > 0);
      out.data<float>()[r * lists + g] = here ? 1.0f : 0.0f;
    }
  }
}

}  // namespace fathom
