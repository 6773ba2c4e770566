#include "ops/rows/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

using V = std::vector<float>;

class Quantile : public ::testing::Test {
 protected:
  float at(const V& scores, float q, const V& valid = {}) {
    return quantile(ctx_, floats(ctx_, scores), q, valid.empty() ? Tensor() : floats(ctx_, valid))
        .data<float>()[0];
  }
  float weighted(const V& scores, const V& weights, float share) {
    return weighted_quantile(ctx_, floats(ctx_, scores), floats(ctx_, weights), std::span(&share, 1))
        .data<float>()[0];
  }
  Context ctx_{{.threads = 1}};
};

// numpy.quantile([4, 1, 3, 2], …)
TEST_F(Quantile, IsNumpys) {
  const V scores{4, 1, 3, 2};
  EXPECT_EQ(at(scores, 0.0f), 1.0f);
  EXPECT_FLOAT_EQ(at(scores, 0.2f), 1.6f);
  EXPECT_EQ(at(scores, 0.5f), 2.5f);
  EXPECT_FLOAT_EQ(at(scores, 0.9f), 3.7f);
  EXPECT_EQ(at(scores, 1.0f), 4.0f);
  EXPECT_EQ(at({7}, 0.3f), 7.0f);
  EXPECT_EQ(at({2, 2, 2}, 0.3f), 2.0f);
}

TEST_F(Quantile, IsWhatSortingSays) {
  Rng rng(5);
  V scores;
  for (int i = 0; i < 1000; ++i) scores.push_back(rng.normal());
  V sorted = scores;
  std::sort(sorted.begin(), sorted.end());
  for (const float q : {0.001f, 0.2f, 0.5f, 0.77f, 0.999f}) {
    const double place = double{q} * 999;
    const auto low = static_cast<size_t>(place);
    const double want = sorted[low] + (place - static_cast<double>(low)) * (sorted[low + 1] - sorted[low]);
    EXPECT_NEAR(at(scores, q), want, 1e-6);
  }
}

TEST_F(Quantile, OnlyWhatCounts) {
  EXPECT_EQ(at({100, 1, NAN, 3}, 0.5f, {0, 1, 0, 1}), 2.0f);
  const Tensor there = floats(ctx_, {1, 3, NAN, 100}).counted_by(ints(ctx_, {2}));
  EXPECT_EQ(quantile(ctx_, there, 0.5f).data<float>()[0], 2.0f);
  EXPECT_EQ(at({-INFINITY, -INFINITY, 1}, 0.25f), -INFINITY);
  EXPECT_EQ(at({1, NAN}, 0.0f), 1.0f);  // NaN is the highest
  EXPECT_EQ(at({1, NAN}, 1.0f), INFINITY);
}

TEST_F(Quantile, WeightedIsTheSmallestThatLeavesNoMoreThanTheShareAbove) {
  EXPECT_EQ(weighted({3, 1, 2, 4}, {1, 1, 1, 1}, 0.5f), 2.0f);
  EXPECT_EQ(weighted({3, 1, 2, 4}, {1, 1, 1, 1}, 0.49f), 3.0f);
  EXPECT_EQ(weighted({3, 1, 2, 4}, {1, 1, 1, 1}, 0.0f), 4.0f);
  EXPECT_EQ(weighted({3, 1, 2, 4}, {1, 1, 1, 1}, 1.0f), 1.0f);
  EXPECT_EQ(weighted({3, 1, 2, 4}, {1, 1, 1, 5}, 0.5f), 4.0f);
  EXPECT_EQ(weighted({2, 2, 1}, {1, 1, 1}, 0.5f), 2.0f);  // ties are above together
  const V ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(weighted(ten, V(10, 1.0f), 0.7f), 3.0f);  // 0.7f is a little less than seven of ten
}

TEST_F(Quantile, WeightedIsItsDefinition) {
  Rng rng(9);
  for (int round = 0; round < 50; ++round) {
    V scores, weights;
    for (int i = 0; i < 30; ++i) {
      scores.push_back(static_cast<float>(rng.below(12)));
      weights.push_back(static_cast<float>(rng.below(4)));
    }
    const float share = rng.uniform();
    double total = 0, best = INFINITY;
    for (const float weight : weights) total += weight;
    for (const float v : scores) {
      double above = 0;
      for (size_t i = 0; i < scores.size(); ++i) above += scores[i] > v ? weights[i] : 0;
      if (above <= share * total) best = std::min(best, double{v});
    }
    EXPECT_EQ(weighted(scores, weights, share), best);
  }
}

TEST_F(Quantile, TopShareOfEachSequence) {
  const auto top = [&](const V& scores, const std::vector<int32_t>& sequence, float share) {
    return values_of(top_share_by_sequence(ctx_, floats(ctx_, scores), ints(ctx_, sequence), share));
  };
  EXPECT_EQ(top({1, 5, 2, 9, 3}, {0, 1, 0, 1, 0}, 0.5f), (V{0, 0, 1, 1, 1}));
  EXPECT_EQ(top({1, 1, 1, 1}, {3, 3, 3, 3}, 0.5f), (V{1, 1, 0, 0}));  // ties: the earlier
  EXPECT_EQ(top({1, NAN, 2}, {0, 0, 0}, 0.3f), (V{0, 1, 0}));
  EXPECT_EQ(top({1, 2}, {0, 1}, 0.0f), (V{0, 0}));
  EXPECT_EQ(top({1, 2}, {0, 1}, 1.0f), (V{1, 1}));
  EXPECT_EQ(top({}, {}, 0.5f), V{});
  V ten{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(top(ten, std::vector<int32_t>(10, 0), 0.3f), (V{0, 0, 0, 0, 0, 0, 0, 1, 1, 1}));  // not four
}

TEST_F(Quantile, NamesWhatWasExpected) {
  EXPECT_EQ(refusal([&] { at({1, 2}, 1.5f); }), "quantile: q must be in [0, 1], got 1.5");
  EXPECT_EQ(refusal([&] {
              at({1, 2}, 0.5f, {0, 0});
            }),
            "quantile: at least one score must count, got none of 2");
  EXPECT_EQ(refusal([&] {
              weighted({1, 2}, {1}, 0.5f);
            }),
            "weighted_quantile: weights must be f32 (2), got f32 (1)");
  EXPECT_EQ(refusal([&] {
              weighted({1, 2}, {1, -1}, 0.5f);
            }),
            "weighted_quantile: a weight must not be below 0, got -1 in row 1");
}

TEST(QuantileOfEqual, MayLieBelowAll) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    const auto of = [&](const std::vector<float>& scores, IfEqual if_equal) {
      const Tensor x = Tensor::from(ctx, scores, {static_cast<int64_t>(scores.size())});
      float value = 0;
      copy_to_host(ctx, quantile(ctx, x, 0.3f, {}, if_equal), std::span(&value, 1));
      return value;
    };
    EXPECT_EQ(of({0.5f, 0.5f, 0.5f}, IfEqual::kBelowAll), -INFINITY);
    EXPECT_EQ(of({0.5f, 0.5f, 0.5f}, IfEqual::kScore), 0.5f);
    EXPECT_EQ(of({0.5f}, IfEqual::kBelowAll), -INFINITY);
    EXPECT_EQ(of({0.5f, 0.5f, 0.5f, 0.75f}, IfEqual::kBelowAll), 0.5f);
  }
}

}  // namespace
}  // namespace fathom
