#include "ops/linear/score_head.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/linear/round_to_bf16.h"
#include "ops/rows/accumulate.h"
#include "quant/half.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

OpCase score_case(int64_t rows, int64_t width) {
  return {.name = "score_head " + to_string(Shape{rows, width}),
          .inputs = {{{rows, width}}, {{1, width}, DType::kF32, 0.3f}, {{1}}},
          .run = [](Context& ctx,
                    std::span<const Tensor> in) { return score_head(ctx, in[0], in[1], in[2], 0.7f).score; },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t r = 0; r < rows; ++r) {
                  double sum = number(in[2], 0);
                  for (int64_t i = 0; i < width; ++i) sum += number(in[0], r * width + i) * number(in[1], i);
                  out.push_back(sigmoid_of(sum));
                }
                return out;
              },
          .tol = {.forward = 1e-5f, .grad = 2e-3f},
          .differentiable = {1, 2}};
}

TEST(ScoreHead, MatchesTheDefinition) {
  check(score_case(1, 1));
  check(score_case(7, 5));
  check(score_case(300, 96));
  check(score_case(600, 576));
}

// bf16: rows as training on a GPU has them. learns: something arrives at the score.
void check_pulls(Device device, int64_t rows, int64_t width, bool bf16, bool learns) {
  constexpr float kCost = 1.7f;
  Context ctx({.device = device, .threads = 2});
  const auto wave = [](int64_t count, double step) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i)
      values.push_back(
          f32_of_bf16(bf16_of_f32(static_cast<float>(std::sin(step * static_cast<double>(i + 1))))));
    return values;
  };
  const std::vector<float> x = wave(rows * width, 0.37), w = wave(width, 1.3), b{0.2f}, d = wave(rows, 0.71);
  Tape tape(device);
  const TapeScope taped(ctx, tape);
  Tensor dw = Tensor::owned(device, DType::kF32, {1, width}), db = Tensor::owned(device, DType::kF32, {1});
  Tensor in = floats(ctx, x, {rows, width});
  if (bf16) {
    Tensor halves = Tensor::empty(ctx, DType::kBF16, in.shape());
    round_to_bf16(ctx, in, halves);
    in = halves;
  }
  const ScoreHead out =
      score_head(ctx, in, parameter(floats(ctx, w, {1, width}), dw), parameter(floats(ctx, b), db), kCost);
  if (learns) accumulate(ctx, out.score, floats(ctx, d));
  tape.backward(ctx, floats(ctx, {0.0f}).with_gradient(std::make_shared<Gradient>()));
  std::vector<double> pull(static_cast<size_t>(width)), own(pull.size());
  double bias_pull = 0, bias = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = static_cast<double>(b[0]);
    for (int64_t i = 0; i < width; ++i)
      sum += static_cast<double>(x[static_cast<size_t>(r * width + i)]) *
             static_cast<double>(w[static_cast<size_t>(i)]);
    const double s = sigmoid_of(sum), slope = s * (1 - s);
    const double mine = learns ? static_cast<double>(d[static_cast<size_t>(r)]) * slope : 0;
    for (int64_t i = 0; i < width; ++i) {
      const auto of = static_cast<double>(x[static_cast<size_t>(r * width + i)]);
      pull[static_cast<size_t>(i)] += static_cast<double>(kCost) * slope * of;
      own[static_cast<size_t>(i)] += mine * of;
    }
    bias_pull += static_cast<double>(kCost) * slope;
    bias += mine;
  }
  const double near = 1e-5 * std::sqrt(static_cast<double>(rows) + 1) + 1e-5;
  const auto expect_all = [&](const Tensor& got, const std::vector<double>& want, const char* what) {
    const std::vector<float> values = host_values(ctx, got);
    ASSERT_EQ(values.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(values[i], want[i], near * (1 + std::abs(want[i]))) << what << " " << i << " of " << rows;
  };
  expect_all(out.weight_pull, pull, "pull");
  expect_all(out.bias_pull, {bias_pull}, "pull at the bias");
  expect_all(dw, own, "gradient");
  expect_all(db, {bias}, "gradient of the bias");
}

TEST(ScoreHead, PullsAreGradientsOfTheSum) {
  for (const Device device : devices_to_check()) {
    for (const bool learns : {true, false}) {
      check_pulls(device, 1, 4, false, learns);
      check_pulls(device, 333, 45, false, learns);
      check_pulls(device, 3000, 96, false, learns);
      if (device == Device::kCuda) check_pulls(device, 1000, 576, true, learns);
    }
  }
}

TEST(ScoreHead, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {3, 8}), bias = Tensor::empty(ctx, DType::kF32, {1});
  EXPECT_EQ(refusal([&] {
              score_head(ctx, x, Tensor::empty(ctx, DType::kF32, {2, 8}), bias, 1);
            }),
            "score_head: weight must be f32 (1, 8), got f32 (2, 8)");
}

}  // namespace
}  // namespace fathom
