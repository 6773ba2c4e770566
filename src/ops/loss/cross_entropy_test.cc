#include "ops/loss/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"

namespace fathom {
namespace {

std::vector<double> log_softmax(const float* x, int64_t n) {
  const double largest = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - largest);
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(x[i] - largest - std::log(sum));
  return out;
}

// Inputs: logits, targets, weights.
OpCase entropy_case(int64_t rows, int64_t vocab, float scale, bool compacted) {
  return {.name = "cross_entropy " + to_string(Shape{rows, vocab}),
          .inputs = {{{rows, vocab}, DType::kF32, scale},
                     {{rows}, DType::kI32, 1.0f, static_cast<int32_t>(vocab)},
                     {{rows}}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                if (!compacted) return cross_entropy(ctx, in[0], in[1], in[2]);
                const RowSet kept = every_third(ctx, rows);
                return cross_entropy(ctx, gather_rows(ctx, in[0], kept), gather_rows(ctx, in[1], kept),
                                     gather_rows(ctx, in[2], kept));
              },
          .reference =
              [=](std::span<const Tensor> in) {
                double sum = 0;
                for (int64_t r = 0; r < rows; ++r) {
                  if (compacted && !is_third(r)) continue;
                  const auto target = static_cast<size_t>(in[1].data<int32_t>()[r]);
                  sum -= number(in[2], r) * log_softmax(in[0].data<float>() + r * vocab, vocab)[target];
                }
                return std::vector<double>{sum};
              },
          .tol = {.forward = 1e-6f, .grad = 2e-5f},
          .differentiable = {0},
          .row_invariant = false};
}

TEST(CrossEntropy, MatchesTheDefinition) {
  check(entropy_case(5, 11, 1.0f, false));
  check(entropy_case(40, 1003, 4.0f, false));
  check(entropy_case(9, 1003, 4.0f, true));
  check(entropy_case(3, 1, 1.0f, false));
  check(entropy_case(0, 4, 1.0f, false));
}

OpCase kl_case(int64_t rows, int64_t vocab, bool compacted) {
  return {.name = "kl_divergence " + to_string(Shape{rows, vocab}),
          .inputs = {{{rows, vocab}, DType::kF32, 2.0f}, {{rows, vocab}}, {{rows}}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                if (!compacted) return kl_divergence(ctx, in[0], in[1], in[2]);
                const RowSet kept = every_third(ctx, rows);
                return kl_divergence(ctx, gather_rows(ctx, in[0], kept), gather_rows(ctx, in[1], kept),
                                     gather_rows(ctx, in[2], kept));
              },
          .reference =
              [=](std::span<const Tensor> in) {
                double sum = 0;
                for (int64_t r = 0; r < rows; ++r) {
                  if (compacted && !is_third(r)) continue;
                  const std::vector<double> t = log_softmax(in[0].data<float>() + r * vocab, vocab),
                                            s = log_softmax(in[1].data<float>() + r * vocab, vocab);
                  for (size_t i = 0; i < t.size(); ++i)
                    sum += number(in[2], r) * std::exp(t[i]) * (t[i] - s[i]);
                }
                return std::vector<double>{sum};
              },
          .tol = {.forward = 2e-6f, .grad = 2e-5f},
          .differentiable = {1},
          .row_invariant = false};
}

TEST(KlDivergence, MatchesTheDefinition) {
  check(kl_case(5, 11, false));
  check(kl_case(20, 1003, false));
  check(kl_case(9, 700, true));
  check(kl_case(0, 4, false));
}

TEST(KlOfRows, MatchesTheDefinition) {
  for (const auto& [rows, vocab] : {std::pair<int64_t, int64_t>{5, 11}, {20, 1003}, {1, 4}}) {
    check({.name = "kl_of_rows " + to_string(Shape{rows, vocab}),
           .inputs = {{{rows, vocab}, DType::kF32, 2.0f}, {{rows, vocab}}},
           .run = [](Context& ctx, std::span<const Tensor> in) { return kl_of_rows(ctx, in[0], in[1]); },
           .reference =
               [width = vocab](std::span<const Tensor> in) {
                 std::vector<double> out;
                 for (int64_t r = 0; r < in[0].dim(0); ++r) {
                   const std::vector<double> t = log_softmax(in[0].data<float>() + r * width, width),
                                             s = log_softmax(in[1].data<float>() + r * width, width);
                   out.push_back(0);
                   for (size_t i = 0; i < t.size(); ++i) out.back() += std::exp(t[i]) * (t[i] - s[i]);
                 }
                 return out;
               }});
  }
}

TEST(KlDivergence, TokensTheTeacherHides) {
  Context ctx({.threads = 1});
  const Tensor teacher = floats(ctx, {0, -INFINITY}, {1, 2}), student = floats(ctx, {0, 0}, {1, 2});
  EXPECT_FLOAT_EQ(kl_divergence(ctx, teacher, student, floats(ctx, {1})).data<float>()[0], std::log(2.0f));
}

OpCase squared_case(int64_t rows, int64_t width) {
  return {
      .name = "mean_squared " + to_string(Shape{rows, width}),
      .inputs = {{{rows, width}}, {{rows, width}}, {{rows}}},
      .run = [](Context& ctx, std::span<const Tensor> in) { return mean_squared(ctx, in[0], in[1], in[2]); },
      .reference =
          [=](std::span<const Tensor> in) {
            double sum = 0;
            for (int64_t i = 0; i < rows * width; ++i)
              sum += number(in[2], i / width) * std::pow(number(in[0], i) - number(in[1], i), 2) /
                     static_cast<double>(width);
            return std::vector<double>{sum};
          },
      .tol = {.forward = 1e-6f, .grad = 2e-5f},
      .differentiable = {0, 1},
      .row_invariant = false};
}

TEST(MeanSquared, MatchesTheDefinition) {
  check(squared_case(5, 11));
  check(squared_case(40, 600));
  check(squared_case(0, 3));
}

struct PairScene {
  Context ctx{{.threads = 2}};
  Tape tape{Device::kCpu};
  Tensor sum = Tensor::owned(Device::kCpu, DType::kF32, {2, 3});
  std::vector<float> logits{1, 2, 3, 3, 0, 1}, weights{1, 0};
};

// A row without weight may hold anything, its target too.
TEST(CrossEntropy, RowsOfWeightZeroAreNotRead) {
  PairScene scene;
  scene.logits[4] = NAN;
  const TapeScope taped(scene.ctx, scene.tape);
  const Tensor loss = cross_entropy(scene.ctx, parameter(floats(scene.ctx, scene.logits, {2, 3}), scene.sum),
                                    ints(scene.ctx, {0, -100}), floats(scene.ctx, scene.weights));
  EXPECT_NEAR(loss.data<float>()[0], 2.4076059f, 1e-6f);
  scene.tape.backward(scene.ctx, loss);
  const std::vector<float> d = values_of(scene.sum);
  EXPECT_NEAR(d[0], 0.0900306f - 1, 1e-6f);
  EXPECT_NEAR(d[2], 0.6652410f, 1e-6f);
  for (size_t i = 3; i < 6; ++i) EXPECT_EQ(d[i], 0.0f);
}

// The logits' memory becomes their gradient when nobody else holds it, and only then.
TEST(CrossEntropy, TheGradientTakesTheLogitsMemory) {
  for (const bool held : {false, true}) {
    PairScene scene;
    const TapeScope taped(scene.ctx, scene.tape);
    const Tensor targets = ints(scene.ctx, {0, 1}), weights = floats(scene.ctx, {1, 2});
    const void* memory = nullptr;
    const void* seen = nullptr;
    Tensor loss, other;
    {
      const Tensor x = parameter(floats(scene.ctx, scene.logits, {2, 3}), scene.sum);
      Tensor middle = Tensor::empty(scene.ctx, DType::kF32, x.shape());
      std::copy_n(x.data<float>(), 6, middle.data<float>());
      memory = middle.raw();
      differentiate(scene.ctx, {&x}, middle, [x, &seen](Context& c, const Tensor& d) {
        seen = d.raw();
        accumulate(c, x, d);
      });
      if (held) other = middle.reshape({6});
      loss = cross_entropy(scene.ctx, middle, targets, weights);
    }
    scene.tape.backward(scene.ctx, loss);
    EXPECT_EQ(seen == memory, !held);
    if (held) {
      EXPECT_EQ(values_of(other), scene.logits);
    }
    EXPECT_NEAR(scene.sum.data<float>()[0], 0.0900306f - 1, 1e-6f);
    EXPECT_NEAR(scene.sum.data<float>()[3], 2 * 0.8437947f, 1e-6f);
  }
}

TEST(CrossEntropy, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor logits = Tensor::owned(Device::kCpu, DType::kF32, {2, 3}), ones = floats(ctx, {1, 1});
  EXPECT_EQ(refusal([&] {
              cross_entropy(ctx, logits, ints(ctx, {0, 3}), ones);
            }),
            "cross_entropy: target must be in [0, 3), got 3 in row 1");
  EXPECT_EQ(refusal([&] {
              cross_entropy(ctx, logits, ints(ctx, {0, 1}), {});
            }),
            "cross_entropy: weights must be f32 (2), got nothing");
  EXPECT_EQ(refusal([&] {
              kl_divergence(ctx, logits.reshape({3, 2}), logits, ones);
            }),
            "kl_divergence: teacher must be f32 (2, 3), got f32 (3, 2)");
  EXPECT_NE(refusal([&] { mean_squared(ctx, logits, logits.reshape({6}), ones); }), "");
}

}  // namespace
}  // namespace fathom
