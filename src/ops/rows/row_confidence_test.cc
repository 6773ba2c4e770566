#include "ops/rows/row_confidence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

OpCase gap_case(int64_t rows, int64_t vocab, float scale) {
  return {.name = "softmax_gap " + to_string(Shape{rows, vocab}),
          .inputs = {{{rows, vocab}, DType::kF32, scale}},
          .run = [](Context& ctx, std::span<const Tensor> in) { return softmax_gap(ctx, in[0]); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t r = 0; r < rows; ++r) {
                  const float* x = in[0].data<float>() + r * vocab;
                  std::vector<double> p(x, x + vocab);
                  std::sort(p.rbegin(), p.rend());
                  double sum = 0;
                  for (const double one : p) sum += std::exp(one - p[0]);
                  out.push_back((1 - (vocab > 1 ? std::exp(p[1] - p[0]) : 0)) / sum);
                }
                return out;
              },
          .tol = {.forward = 5e-7f}};
}

OpCase cosine_case(int64_t rows, int64_t d, float scale) {
  return {.name = "cosine_rows " + to_string(Shape{rows, d}),
          .inputs = {{{rows, d}, DType::kF32, scale}, {{rows, d}, DType::kF32, scale}},
          .run = [](Context& ctx, std::span<const Tensor> in) { return cosine_rows(ctx, in[0], in[1]); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t r = 0; r < rows; ++r) {
                  const float *a = in[0].data<float>() + r * d, *b = in[1].data<float>() + r * d;
                  double aa = 0, bb = 0, ab = 0;
                  for (int64_t i = 0; i < d; ++i) {
                    aa += double{a[i]} * a[i];
                    bb += double{b[i]} * b[i];
                    ab += double{a[i]} * b[i];
                  }
                  out.push_back(ab / std::sqrt(aa * bb));
                }
                return out;
              },
          .tol = {.forward = 1e-6f},
          .row_invariant = false};
}

TEST(SoftmaxGap, MatchesTheDefinition) {
  check(gap_case(5, 64, 1.0f));
  check(gap_case(9, 1003, 6.0f));
  check(gap_case(3, 49152, 4.0f));
  check(gap_case(4, 1, 1.0f));
  check(gap_case(0, 10, 1.0f));
}

TEST(SoftmaxGap, IsZeroWhereTwoTokensShareTheTop) {
  Context ctx({.threads = 1});
  const std::vector<float> logits{1, 3, 3, -INFINITY};
  EXPECT_EQ(softmax_gap(ctx, Tensor::from(ctx, logits, {1, 4})).data<float>()[0], 0.0f);
}

TEST(CosineRows, MatchesTheDefinition) {
  check(cosine_case(5, 64, 1.0f));
  check(cosine_case(9, 577, 6.0f));
  check(cosine_case(1, 1, 1.0f));
  check(cosine_case(0, 10, 1.0f));
}

// A row's bits do not depend on the rows beside it; a zero row is like nothing.
TEST(CosineRows, EachRowAlone) {
  Context ctx({.threads = 1});
  const std::vector<float> a{1, 2, 3, 0, 0, 0, -1, 5, 2}, b{3, 1, 2, 1, 1, 1, 1, -5, -2};
  const Tensor left = Tensor::from(ctx, a, {3, 3}), right = Tensor::from(ctx, b, {3, 3});
  const Tensor all = cosine_rows(ctx, left, right);
  for (int64_t r = 0; r < 3; ++r)
    EXPECT_EQ(cosine_rows(ctx, left.rows(r, 1), right.rows(r, 1)).data<float>()[0], all.data<float>()[r]);
  EXPECT_EQ(all.data<float>()[1], 0.0f);
  EXPECT_FLOAT_EQ(all.data<float>()[2], -1.0f);
  EXPECT_THROW(cosine_rows(ctx, left, right.rows(0, 2)), UserError);
}

}  // namespace
}  // namespace fathom
