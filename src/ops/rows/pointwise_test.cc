#include "ops/rows/pointwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

double definition(Unary function, double x) {
  const double floor = 1e-6f;
  switch (function) {
    case Unary::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Unary::kRelu:
      return std::max(0.0, x);
    case Unary::kSilu:
      return x / (1 + std::exp(-x));
    case Unary::kSquare:
      return x * x;
    case Unary::kAbs:
      return std::abs(x);
    case Unary::kLogFloor:
      return std::log(std::max(x, floor));
    case Unary::kClamp01:
      return std::min(1.0, std::max(0.0, x));
    case Unary::kLogit: {
      const double p = std::min(1.0 - floor, std::max(floor, x));
      return std::log(p / (1 - p));
    }
  }
  return NAN;
}

constexpr Unary kAll[] = {Unary::kSigmoid, Unary::kRelu,     Unary::kSilu,    Unary::kSquare,
                          Unary::kAbs,     Unary::kLogFloor, Unary::kClamp01, Unary::kLogit};

// Through a sigmoid where the function needs numbers in (0, 1).
OpCase unary_case(Unary function, Shape shape, float scale) {
  const bool inside = function == Unary::kLogit || function == Unary::kLogFloor;
  return {.name = "apply " + std::to_string(static_cast<int>(function)) + " " + to_string(shape),
          .inputs = {{shape, DType::kF32, scale}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                return apply(ctx, function, inside ? apply(ctx, Unary::kSigmoid, in[0]) : in[0]);
              },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < in[0].numel(); ++i) {
                  const double x = number(in[0], i);
                  out.push_back(definition(function, inside ? definition(Unary::kSigmoid, x) : x));
                }
                return out;
              },
          .tol = {.forward = 2e-6f, .grad = 1e-4f}};
}

TEST(Apply, MatchesTheDefinition) {
  for (const Unary function : kAll) {
    check(unary_case(function, {5, 7}, 1.0f));
    check(unary_case(function, {41, 1003}, 1.0f));  // several tasks
    check(unary_case(function, {0, 3}, 1.0f));
    check(unary_case(function, {6}, 1.0f));
  }
}

std::vector<float> gradient_at(Device device, Unary function, const std::vector<float>& at) {
  Context ctx({.device = device, .threads = 1});
  Tape tape(device);
  const TapeScope taped(ctx, tape);
  Tensor sum = Tensor::owned(device, DType::kF32, {static_cast<int64_t>(at.size())});
  const Tensor y = apply(ctx, function, parameter(floats(ctx, at), sum));
  Tensor loss = Tensor::owned(device, DType::kF32, {1});
  const std::vector<float> ones(at.size(), 1.0f);
  differentiate(ctx, {&y}, loss, [&](Context& c, const Tensor&) { accumulate(c, y, floats(c, ones)); });
  tape.backward(ctx, loss);
  return host_values(ctx, sum);
}

TEST(Apply, DerivativesAtTheEdges) {
  using V = std::vector<float>;
  for (const Device device : devices_to_check()) {
    EXPECT_EQ(gradient_at(device, Unary::kRelu, {-1, 0, 2}), (V{0, 0, 1}));
    EXPECT_EQ(gradient_at(device, Unary::kAbs, {-1, 0, 2}), (V{-1, 0, 1}));
    EXPECT_EQ(gradient_at(device, Unary::kClamp01, {-1, 0, 0.5f, 1, 2}), (V{0, 0, 1, 0, 0}));
    EXPECT_EQ(gradient_at(device, Unary::kLogFloor, {-1, 1e-7f, 0.5f}), (V{0, 0, 2}));
    EXPECT_EQ(gradient_at(device, Unary::kLogit, {0, 0.5f, 1}), (V{0, 4, 0}));
  }
}

TEST(Apply, ValuesAtTheEdges) {
  Context ctx({.threads = 1});
  const std::vector<float> x{-INFINITY, -1e30f, 0, 1, 1e30f, INFINITY};
  const auto of = [&](Unary function) { return values_of(apply(ctx, function, floats(ctx, x))); };
  const std::vector<float> sigmoid = of(Unary::kSigmoid);
  EXPECT_NEAR(sigmoid[0], 0, 1e-30);
  EXPECT_EQ(sigmoid[2], 0.5f);
  EXPECT_EQ(sigmoid[5], 1.0f);
  EXPECT_EQ(of(Unary::kClamp01), (std::vector<float>{0, 0, 0, 1, 1, 1}));
  EXPECT_FLOAT_EQ(of(Unary::kLogFloor)[0], std::log(1e-6f));
  EXPECT_NEAR(of(Unary::kLogit)[5], -of(Unary::kLogit)[0], 0.05f);
  EXPECT_TRUE(std::isnan(apply(ctx, Unary::kRelu, floats(ctx, {NAN})).data<float>()[0]));
}

OpCase pair_case(std::string name, Shape shape,
                 std::function<Tensor(Context&, const Tensor&, const Tensor&)> op,
                 std::function<double(double, double)> definition_of) {
  return {.name = std::move(name),
          .inputs = {{shape}, {shape}},
          .run = [=](Context& ctx, std::span<const Tensor> in) { return op(ctx, in[0], in[1]); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < in[0].numel(); ++i)
                  out.push_back(definition_of(number(in[0], i), number(in[1], i)));
                return out;
              },
          .tol = {.forward = 1e-6f, .grad = 1e-5f}};
}

TEST(Pointwise, SumsAndProducts) {
  for (const Shape& shape : {Shape{5, 7}, Shape{9}, Shape{3, 4, 5}, Shape{60, 700}, Shape{0, 4}}) {
    check(pair_case("add", shape, add, [](double a, double b) { return a + b; }));
    check(pair_case("multiply", shape, multiply, [](double a, double b) { return a * b; }));
    check(pair_case(
        "a · a + b", shape,
        [](Context& ctx, const Tensor& a, const Tensor& b) { return add(ctx, multiply(ctx, a, a), b); },
        [](double a, double b) { return a * a + b; }));
    check(pair_case(
        "affine", shape,
        [](Context& ctx, const Tensor& a, const Tensor& b) {
          return add(ctx, affine(ctx, a, -2.5f, 0.75f), affine(ctx, b, 1.0f, 3.0f));
        },
        [](double a, double b) { return -2.5 * a + 0.75 + b + 3; }));
  }
}

// Compacted in, compacted out: nothing past the count is read, in either direction.
TEST(Pointwise, OnlyTheKeptRows) {
  constexpr int64_t kRows = 20, kWidth = 3;
  check({.name = "pointwise on kept rows",
         .inputs = {{{kRows, kWidth}}, {{kRows, kWidth}}},
         .run =
             [](Context& ctx, std::span<const Tensor> in) {
               const RowSet kept = every_third(ctx, kRows);
               const Tensor a = gather_rows(ctx, in[0], kept), b = gather_rows(ctx, in[1], kept);
               const Tensor y = multiply(ctx, apply(ctx, Unary::kSilu, a), affine(ctx, b, 2.0f, 1.0f));
               return add_rows(ctx, in[0], kept, add(ctx, y, apply(ctx, Unary::kSquare, b)));
             },
         .reference =
             [](std::span<const Tensor> in) {
               std::vector<double> out;
               for (int64_t i = 0; i < kRows * kWidth; ++i) {
                 const double a = number(in[0], i), b = number(in[1], i);
                 const double y = definition(Unary::kSilu, a) * (2 * b + 1) + b * b;
                 out.push_back(a + (is_third(i / kWidth) ? y : 0));
               }
               return out;
             },
         .tol = {.forward = 2e-6f, .grad = 2e-5f},
         .row_invariant = false});
}

TEST(Pointwise, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {2, 8});
  EXPECT_EQ(refusal([&] {
              add(ctx, x, Tensor::empty(ctx, DType::kF32, {2, 9}));
            }),
            "add: b must be f32 (2, 8), got f32 (2, 9)");
  EXPECT_EQ(refusal([&] { multiply(ctx, x, {}); }), "multiply: b must be f32 (2, 8), got nothing");
  EXPECT_EQ(refusal([&] { apply(ctx, Unary::kRelu, x.columns(1, 2)); }),
            "apply: x must be dense f32, got strided f32 (2, 2)");
  EXPECT_NE(refusal([&] { affine(ctx, Tensor::empty(ctx, DType::kI32, {2}), 1, 0); }), "");
}

}  // namespace
}  // namespace fathom
