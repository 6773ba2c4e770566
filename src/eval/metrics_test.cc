#include "eval/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace fathom {
namespace {

TEST(PairedDifference, ByHand) {
  const Metric a = mean_metric("acc", std::vector<double>{1, 1, 0, 1}),
               b = mean_metric("acc", std::vector<double>{1, 0, 0, 0});
  // Differences 0 1 0 1: mean 1/2, variance 4 · (1/2)² / 3, over 4.
  const Metric difference = paired_difference(a, b);
  EXPECT_EQ(difference.name, "acc");
  EXPECT_DOUBLE_EQ(difference.value, 0.5);
  EXPECT_DOUBLE_EQ(difference.error, std::sqrt(1.0 / 3 / 4));
  EXPECT_EQ(paired_difference(a, a).error, 0);
  EXPECT_TRUE(std::isnan(paired_difference(a, mean_metric("acc", std::vector<double>{1, 0, 1})).error));
  EXPECT_TRUE(std::isnan(paired_difference({"f1", 0.5, NAN}, {"f1", 0.25, NAN}).error));
  EXPECT_EQ(paired_difference({"f1", 0.5, NAN}, {"f1", 0.25, NAN}).value, 0.25);
}

// Items that are hard for one are hard for the other.
TEST(PairedDifference, IsSurerThanTwoErrorsWhereItemsAreAlike) {
  Rng rng(3);
  std::vector<double> a, b;
  for (int i = 0; i < 200; ++i) {
    const double ease = double{rng.normal()};
    a.push_back(ease + 0.2 * double{rng.normal()} + 0.1);
    b.push_back(ease + 0.2 * double{rng.normal()});
  }
  const Metric first = mean_metric("acc", a), second = mean_metric("acc", b);
  const Metric difference = paired_difference(first, second);
  EXPECT_NEAR(difference.value, first.value - second.value, 1e-12);
  EXPECT_LT(difference.error, std::hypot(first.error, second.error) / 3);
  EXPECT_NEAR(difference.error, 0.2 * std::sqrt(2.0 / 200), 0.005);
}

// Of perplexities the items are the first order's: their mean is the value, their error the delta method's.
TEST(PairedDifference, OfPerplexities) {
  const Metric ppl = perplexity_metric(std::vector<double>{-1, -2, -4});
  const Metric of_items = mean_metric("perplexity", ppl.items);
  EXPECT_NEAR(of_items.value, ppl.value, 1e-12);
  EXPECT_NEAR(of_items.error, ppl.error, 1e-12);

  // Windows of different lengths, twice the same loss of a token: nothing to be unsure of.
  const std::vector<double> tokens{10, 30, 60};
  const auto window = [&](const std::vector<double>& logprobs) {
    double loss = 0;
    for (const double one : logprobs) loss -= one / 100;
    return window_metric("token_perplexity", std::exp(loss), std::exp(loss), logprobs, tokens, 100);
  };
  const Metric even = window({-20, -60, -120}), better = window({-19, -57, -114});
  EXPECT_NEAR(paired_difference(better, even).value, std::exp(1.9) - std::exp(2.0), 1e-12);
  EXPECT_NEAR(paired_difference(better, even).error, 0, 1e-9);
  // By hand: residuals of the loss 1, 0, −1 of 100 tokens, three windows.
  const Metric uneven = window({-21, -60, -119});
  EXPECT_NEAR(paired_difference(uneven, even).value, 0, 1e-12);
  EXPECT_NEAR(paired_difference(uneven, even).error, std::exp(2.0) * std::sqrt(3.0) / 100, 1e-9);
}

TEST(Verdict, LevelBetterWorse) {
  EXPECT_EQ(verdict_of({"acc", 0.19, 0.1}), "level");
  EXPECT_EQ(verdict_of({"acc", 0.20, 0.1}), "better");
  EXPECT_EQ(verdict_of({"acc", -0.20, 0.1}), "worse");
  EXPECT_EQ(verdict_of({"token_perplexity", -0.20, 0.1}), "better");
  EXPECT_EQ(verdict_of({"bits_per_byte", 0.20, 0.1}), "worse");
  EXPECT_EQ(verdict_of({"acc", 0, 0}), "level");
  EXPECT_EQ(verdict_of({"acc", 0.2, NAN}), "");
}

}  // namespace
}  // namespace fathom
