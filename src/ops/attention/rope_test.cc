#include "ops/attention/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

std::vector<double> reference(std::span<const Tensor> in, RopeParams params) {
  const int64_t rows = in[0].dim(0), heads = in[0].dim(1), dim = in[0].dim(2), half = dim / 2;
  std::vector<double> out(static_cast<size_t>(in[0].numel()));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* x = in[0].data<float>() + (r * heads + h) * dim;
      double* y = out.data() + (r * heads + h) * dim;
      for (int64_t i = 0; i < half; ++i) {
        const int64_t a = params.style == RopeStyle::kHalves ? i : 2 * i;
        const int64_t b = params.style == RopeStyle::kHalves ? i + half : 2 * i + 1;
        const float angle = static_cast<float>(in[1].data<int32_t>()[r]) * in[2].data<float>()[i];
        const double cos = std::cos(double{angle}) * params.magnitude,
                     sin = std::sin(double{angle}) * params.magnitude;
        y[a] = x[a] * cos - x[b] * sin;
        y[b] = x[b] * cos + x[a] * sin;
      }
    }
  }
  return out;
}

OpCase rope_case(Shape shape, RopeParams params, int32_t most_position) {
  return {
      .name = "rope " + to_string(shape),
      .inputs = {{shape},
                 {{shape[0]}, DType::kI32, 1.0f, most_position},
                 {{shape[2] / 2}, DType::kF32, 0.5f}},
      .run = [=](Context& ctx, std::span<const Tensor> in) { return rope(ctx, in[0], in[1], in[2], params); },
      .reference = [=](std::span<const Tensor> in) { return reference(in, params); },
      .tol = {.forward = 1e-6f, .grad = 1e-5f},
      .differentiable = {0}};
}

TEST(Rope, MatchesTheDefinition) {
  for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kPairs}) {
    check(rope_case({5, 3, 64}, {.style = style}, 2048));
    check(rope_case({50, 9, 64}, {.style = style, .magnitude = 1.2f}, 100));
    check(rope_case({3, 2, 12}, {.style = style}, 131072));  // half a head is not whole vectors
    check(rope_case({2, 1, 256}, {.style = style}, 1 << 20));
    check(rope_case({6, 1, 128}, {.style = style}, INT32_MAX));  // beyond what the fast sine takes
    check(rope_case({0, 2, 16}, {.style = style}, 4));
  }
}

TEST(Rope, PositionZeroChangesNothing) {
  Context ctx({.threads = 1});
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 7.5f;
  const Tensor frequency = Tensor::from(ctx, std::vector<float>(8, 0.3f), {8});
  const Tensor out =
      rope(ctx, Tensor::from(ctx, x, {1, 2, 16}), Tensor::from(ctx, std::vector<int32_t>{0}, {1}), frequency);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(out.data<float>()[i], x[i]);
}

TEST(Rope, RefusesWrongShapes) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {2, 3, 16}),
               frequency = Tensor::empty(ctx, DType::kF32, {8});
  EXPECT_THROW(rope(ctx, x, Tensor::empty(ctx, DType::kI32, {3}), frequency), UserError);
  EXPECT_THROW(rope(ctx, x, Tensor::empty(ctx, DType::kI32, {2}), Tensor::empty(ctx, DType::kF32, {16})),
               UserError);
  EXPECT_THROW(rope(ctx, x.reshape({2, 48}), Tensor::empty(ctx, DType::kI32, {2}), frequency), UserError);
}

}  // namespace
}  // namespace fathom
