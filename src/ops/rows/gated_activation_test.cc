#include "ops/rows/gated_activation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/op_case.h"

namespace fathom {
namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

OpCase gated_case(Shape shape, Activation activation, float scale) {
  return {.name = "gated_activation " + to_string(shape),
          .inputs = {{shape, DType::kF32, scale}, {shape}},
          .run = [=](Context& ctx,
                     std::span<const Tensor> in) { return gated_activation(ctx, in[0], in[1], activation); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < in[0].numel(); ++i) {
                  const double gate = in[0].data<float>()[i];
                  out.push_back((activation == Activation::kSilu ? silu(gate) : gelu_tanh(gate)) *
                                in[1].data<float>()[i]);
                }
                return out;
              },
          .tol = {.forward = 1e-6f, .grad = 2e-5f}};
}

TEST(GatedActivation, MatchesTheDefinition) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    check(gated_case({5, 64}, activation, 1.0f));
    check(gated_case({3, 13}, activation, 4.0f));
    check(gated_case({19, 1536}, activation, 2.0f));
    check(gated_case({1, 1001}, activation, 60.0f));  // both ends of exp
    check(gated_case({0, 8}, activation, 1.0f));
  }
}

TEST(GatedActivation, HugeGatesGiveNoNaN) {
  Context ctx({.threads = 1});
  const std::vector<float> gates{-1e30f, -200.0f, 200.0f, 1e30f, 0.0f, -0.0f}, ones(6, 1.0f);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const Tensor out =
        gated_activation(ctx, Tensor::from(ctx, gates, {1, 6}), Tensor::from(ctx, ones, {1, 6}), activation);
    for (const int i : {1, 4, 5}) EXPECT_NEAR(out.data<float>()[i], 0.0f, 1e-30f);
    EXPECT_TRUE(std::abs(out.data<float>()[0]) < 1e-7f);
    EXPECT_EQ(out.data<float>()[2], 200.0f);
    EXPECT_EQ(out.data<float>()[3], 1e30f);
  }
}

TEST(GatedActivation, RefusesShapesThatDiffer) {
  Context ctx({.threads = 1});
  const Tensor gate = Tensor::empty(ctx, DType::kF32, {2, 8}), up = Tensor::empty(ctx, DType::kF32, {2, 9});
  EXPECT_THROW(gated_activation(ctx, gate, up, Activation::kSilu), UserError);
}

}  // namespace
}  // namespace fathom
