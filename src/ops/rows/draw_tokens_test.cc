#include "ops/rows/draw_tokens.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/rng.h"
#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(int64_t count, float spread) {
  Rng rng(7);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(spread * rng.normal());
  return values;
}

// By the definition: the first token at which the probabilities up to it exceed `at`. `margin`: how near the
// draw is to a neighbour's.
int32_t wanted(std::span<const float> logits, float temperature, double at, double* margin) {
  double largest = -std::numeric_limits<double>::infinity(), total = 0;
  for (const float x : logits) largest = std::max(largest, double{x});
  const auto weight = [&](float x) { return std::exp((double{x} - largest) / double{temperature}); };
  for (const float x : logits) total += weight(x);
  double below = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double next = below + weight(logits[i]) / total;
    *margin = std::min(std::abs(at - below), std::abs(next - at));
    if (at < next) return static_cast<int32_t>(i);
    below = next;
  }
  return -1;
}

TEST(DrawTokens, AreWhereTheirNumberLies) {
  for (const Device device : devices_to_check()) {
    for (const int64_t vocab : {1, 5, 512, 513, 4099}) {
      Context ctx({.device = device, .threads = 2});
      constexpr int64_t kRows = 3;
      std::vector<float> logits = random_logits(kRows * vocab, 2.0f);
      if (vocab > 5) std::fill_n(logits.begin() + 2, 3, -kInfinity);
      std::vector<TokenDraw> draws;
      Rng rng(11);
      for (int i = 0; i < 300; ++i)
        draws.push_back({i % static_cast<int32_t>(kRows), i % 2 ? 1.0f : 0.7f, rng.uniform_double()});
      const std::vector<int32_t> tokens = draw_tokens(ctx, Tensor::from(ctx, logits, {kRows, vocab}), draws);
      ASSERT_EQ(tokens.size(), draws.size());
      int checked = 0;
      for (size_t i = 0; i < draws.size(); ++i) {
        double margin = 0;
        const auto row =
            std::span(logits).subspan(static_cast<size_t>(draws[i].row * vocab), static_cast<size_t>(vocab));
        const int32_t want = wanted(row, draws[i].temperature, draws[i].at, &margin);
        if (margin < 1e-6) continue;  // f32 exponentials may put it on the other side
        ASSERT_EQ(tokens[i], want) << "draw " << i << " of " << vocab;
        ++checked;
      }
      EXPECT_GT(checked, 250);
    }
  }
}

TEST(DrawTokens, TheEndsOfTheVocabularyCome) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    std::vector<float> logits(1500, 0.0f);
    logits.front() = logits.back() = -kInfinity;
    const std::vector<int32_t> tokens =
        draw_tokens(ctx, Tensor::from(ctx, logits, {1, 1500}),
                    std::vector<TokenDraw>{{0, 1.0f, 0.0}, {0, 1.0f, std::nextafter(1.0, 0.0)}});
    EXPECT_EQ(tokens, (std::vector<int32_t>{1, 1498}));  // never what cannot come
  }
}

TEST(DrawTokens, BrokenRowsAreSaid) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 2});
    std::vector<float> logits(4 * 600, 0.0f);
    logits[17] = NAN;
    logits[600 + 599] = kInfinity;
    std::fill_n(logits.begin() + 1200, 600, -kInfinity);
    const Tensor rows = Tensor::from(ctx, logits, {4, 600});
    const std::vector<int32_t> tokens = draw_tokens(
        ctx, rows, std::vector<TokenDraw>{{0, 1.0f, 0.5}, {1, 1.0f, 0.5}, {2, 1.0f, 0.5}, {3, 1.0f, 0.5}});
    EXPECT_EQ(tokens, (std::vector<int32_t>{-1, -1, -1, 300}));
    EXPECT_THROW(draw_tokens(ctx, rows, std::vector<TokenDraw>{{4, 1.0f, 0.5}}), UserError);
    EXPECT_TRUE(draw_tokens(ctx, rows, {}).empty());
  }
}

}  // namespace
}  // namespace fathom
