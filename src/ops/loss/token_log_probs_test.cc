#include "ops/loss/token_log_probs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

OpCase log_probs_case(int64_t rows, int64_t vocab, float scale) {
  return {.name = "token_log_probs " + to_string(Shape{rows, vocab}),
          .inputs = {{{rows, vocab}, DType::kF32, scale},
                     {{rows}, DType::kI32, 1.0f, static_cast<int32_t>(vocab)}},
          .run = [](Context& ctx, std::span<const Tensor> in) { return token_log_probs(ctx, in[0], in[1]); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t r = 0; r < rows; ++r) {
                  const float* x = in[0].data<float>() + r * vocab;
                  const double largest = *std::max_element(x, x + vocab);
                  double sum = 0;
                  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - largest);
                  out.push_back(x[in[1].data<int32_t>()[r]] - largest - std::log(sum));
                }
                return out;
              },
          .tol = {.forward = 5e-7f}};
}

TEST(TokenLogProbs, MatchesTheDefinition) {
  check(log_probs_case(5, 64, 1.0f));
  check(log_probs_case(9, 1003, 10.0f));
  check(log_probs_case(3, 49152, 4.0f));
  check(log_probs_case(4, 1, 1.0f));
  check(log_probs_case(0, 10, 1.0f));
  check(log_probs_case(4, 33, 1000.0f));  // only the largest counts
}

TEST(TokenLogProbs, HiddenTokensHaveNoShare) {
  Context ctx({.threads = 1});
  const std::vector<float> logits{-INFINITY, 1.0f, 1.0f, -INFINITY};
  const std::vector<int32_t> targets{2};
  EXPECT_FLOAT_EQ(token_log_probs(ctx, Tensor::from(ctx, logits, {1, 4}), Tensor::from(ctx, targets, {1}))
                      .data<float>()[0],
                  -std::log(2.0f));
}

TEST(TokenLogProbs, NamesTheTargetThatIsOutOfRange) {
  Context ctx({.threads = 1});
  const Tensor logits = Tensor::empty(ctx, DType::kF32, {1, 4});
  for (const int32_t target : {-1, 4}) {
    const std::vector<int32_t> targets{target};
    EXPECT_THROW(token_log_probs(ctx, logits, Tensor::from(ctx, targets, {1})), UserError);
  }
}

}  // namespace
}  // namespace fathom
