#include "ops/rows/list_prices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

constexpr int kLists = 4;

ListRules rules(int32_t band = 0, int32_t protect_rows = 0) {
  return {{kLists, {1.0f, 0.9f, 0.75f, 0.7f, 0.5f}}, band, protect_rows};
}

struct PriceCase {
  std::vector<float> predicted, mean;
  std::vector<int32_t> positions;
  int64_t rows;
};

PriceCase random_case(int64_t rows) {
  PriceCase c;
  Rng rng(3);
  c.rows = rows;
  c.mean = {0.1f, 0.4f, 0.5f, 1.5f};
  for (int64_t r = 0; r < rows; ++r) {
    for (const float mean : c.mean) c.predicted.push_back(mean + 0.4f * rng.normal());
    c.positions.push_back(static_cast<int32_t>(r));
  }
  return c;
}

struct Prices {
  std::vector<float> prices, most;
};

Prices run(Context& ctx, const PriceCase& c, const ListRules& rules) {
  const ListPrices out =
      list_prices(ctx, Tensor::from(ctx, c.predicted, {c.rows, kLists}), Tensor::from(ctx, c.mean, {kLists}),
                  Tensor::from(ctx, c.positions, {c.rows}), rules);
  Prices host{std::vector<float>(static_cast<size_t>(kLists * c.rows)),
              std::vector<float>(static_cast<size_t>(kLists * c.rows))};
  copy_to_host(ctx, out.prices, host.prices);
  copy_to_host(ctx, out.most, host.most);
  return host;
}

int least_at(const ListRules& rules, const float* loss, float price) {
  int best = 0;
  double least = static_cast<double>(price) * static_cast<double>(rules.costs.left[0]);
  for (int k = 1; k <= kLists; ++k) {
    const double here =
        static_cast<double>(loss[k - 1]) +
        static_cast<double>(price) * static_cast<double>(rules.costs.left[static_cast<size_t>(k)]);
    if (here < least) least = here, best = k;
  }
  return best;
}

// At every price a row's prices say which list has the least loss + price · cost.
TEST(ListPrices, TheListOfLeastLossAndCost) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 2});
    const PriceCase c = random_case(300);
    const Prices out = run(ctx, c, rules());
    for (int64_t r = 0; r < c.rows; ++r) {
      for (const float price : {-3.0f, 0.37f, 1.1f, 2.03f, 5.7f, 40.0f}) {
        int dropped = 0;
        for (int g = 0; g < kLists; ++g) dropped += price > out.prices[static_cast<size_t>(g * c.rows + r)];
        ASSERT_EQ(dropped, least_at(rules(), c.predicted.data() + r * kLists, price)) << r << " " << price;
      }
    }
  }
}

TEST(ListPrices, ABandKeepsRowsNearTheMeanRow) {
  Context ctx({.threads = 1});
  const PriceCase c = random_case(300);
  const Prices wide = run(ctx, c, rules()), narrow = run(ctx, c, rules(1));
  PriceCase mean = c;
  for (int64_t r = 0; r < c.rows; ++r)
    std::copy(c.mean.begin(), c.mean.end(), mean.predicted.begin() + r * kLists);
  const Prices middle = run(ctx, mean, rules());
  int64_t same = 0, pressed = 0;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int g = 0; g < kLists; ++g) {
      const auto at = static_cast<size_t>(g * c.rows + r);
      const float price = narrow.prices[at];
      if (g + 1 < kLists) {
        EXPECT_LE(price, std::max(middle.prices[at + static_cast<size_t>(c.rows)],
                                  middle.prices[at] * 1.05f + 1e-4f) *
                             1.00001f);
        EXPECT_LE(price, narrow.most[at]);
      }
      EXPECT_GE(price, g > 0 ? narrow.prices[at - static_cast<size_t>(c.rows)] : price);  // nested
      (price == wide.prices[at] ? same : pressed)++;
    }
  }
  EXPECT_GT(same, 100);
  EXPECT_GT(pressed, 100);
}

TEST(ListPrices, FirstRowsStay) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    const PriceCase c = random_case(6);
    const Prices out = run(ctx, c, rules(1, 2));
    for (size_t at = 0; at < out.prices.size(); ++at) {
      EXPECT_EQ(std::isinf(out.prices[at]), at % 6 < 2);
      EXPECT_EQ(std::isinf(out.most[at]), at % 6 < 2);
    }
  }
}

// Rows of one call and of many: the same bits.
TEST(ListPrices, ARowDependsOnItselfAlone) {
  Context one({.threads = 1}), three({.threads = 3});
  const PriceCase c = random_case(700);
  const Prices all = run(three, c, rules(1));
  for (int64_t r = 0; r < c.rows; r += 99) {
    PriceCase alone{{c.predicted.begin() + r * kLists, c.predicted.begin() + (r + 1) * kLists},
                    c.mean,
                    {c.positions[static_cast<size_t>(r)]},
                    1};
    const Prices out = run(one, alone, rules(1));
    for (int g = 0; g < kLists; ++g)
      EXPECT_EQ(out.prices[static_cast<size_t>(g)], all.prices[static_cast<size_t>(g * c.rows + r)]);
  }
}

TEST(LevelPrices, ARowTakesTheListOfItsLevel) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    const std::vector<float> level{-0.5f, 0.5f, 1.0f, 1.9f, 3.2f, 9.0f, 9.0f};
    const std::vector<int32_t> positions{3, 3, 3, 3, 3, 3, 0};
    const ListPrices out =
        level_prices(ctx, Tensor::from(ctx, level, {7}), Tensor::from(ctx, positions, {7}), kLists, 1);
    const Tensor chosen = chosen_lists(ctx, out.prices);
    std::vector<float> mask(static_cast<size_t>(7 * kLists));
    copy_to_host(ctx, chosen, mask);
    const std::vector<int> wanted{0, 0, 1, 1, 3, 4, 0};
    for (size_t r = 0; r < 7; ++r) {
      for (int k = 1; k <= kLists; ++k)
        EXPECT_EQ(mask[r * kLists + static_cast<size_t>(k - 1)], wanted[r] == k ? 1.0f : 0.0f) << r;
    }
  }
}

TEST(ListPrices, ShapesAreChecked) {
  Context ctx({.threads = 1});
  PriceCase c = random_case(3);
  c.mean.push_back(0);
  EXPECT_THROW(list_prices(ctx, Tensor::from(ctx, c.predicted, {3, kLists}), Tensor::from(ctx, c.mean, {5}),
                           Tensor::from(ctx, c.positions, {3}), rules()),
               UserError);
  EXPECT_THROW(level_prices(ctx, Tensor::from(ctx, c.mean, {5}), Tensor::from(ctx, c.positions, {3}), 2, 0),
               UserError);
}

}  // namespace
}  // namespace fathom
