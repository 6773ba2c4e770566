#include "ops/rows/reduce.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/gather_rows.h"
#include "ops/rows/pointwise.h"
#include "tensor/tape.h"

namespace fathom {
namespace {

OpCase columns_case(int64_t rows, int64_t width) {
  return {.name = "mean_columns " + to_string(Shape{rows, width}),
          .inputs = {{{rows, width}}},
          .run = [](Context& ctx, std::span<const Tensor> in) { return mean_columns(ctx, in[0]); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out(static_cast<size_t>(rows));
                for (int64_t i = 0; i < rows * width; ++i)
                  out[static_cast<size_t>(i / width)] += number(in[0], i) / static_cast<double>(width);
                return out;
              },
          .tol = {.forward = 1e-6f, .grad = 1e-5f}};
}

TEST(MeanColumns, MatchesTheDefinition) {
  for (const int64_t width : {1, 7, 8, 33, 576, 2000}) check(columns_case(9, width));
  check(columns_case(0, 4));
}

double weight_of(std::span<const Tensor> in, int64_t row) {
  return in.size() > 1 ? number(in[1], row) * number(in[1], row) : 1.0;
}

// Mean and variance of x (weights: the squares of the second input), of the kept rows or of all.
OpCase rows_case(int64_t rows, bool weighted, bool variance, bool compacted) {
  OpCase op_case{
      .name = std::string(variance ? "variance_rows" : "mean_rows") + (compacted ? " of kept rows" : ""),
      .inputs = {{{rows}}},
      .run =
          [=](Context& ctx, std::span<const Tensor> in) {
            Tensor x = in[0], weights;
            if (weighted) weights = apply(ctx, Unary::kSquare, in[1]);
            if (compacted) {
              const RowSet kept = every_third(ctx, rows);
              x = gather_rows(ctx, x, kept);
              if (weighted) weights = gather_rows(ctx, weights, kept);
            }
            return variance ? variance_rows(ctx, x) : mean_rows(ctx, x, weights);
          },
      .reference =
          [=](std::span<const Tensor> in) {
            double sum = 0, squares = 0, total = 0;
            for (int64_t r = 0; r < rows; ++r) {
              if (compacted && !is_third(r)) continue;
              const double weight = weight_of(in, r), x = number(in[0], r);
              sum += weight * x;
              squares += weight * x * x;
              total += weight;
            }
            if (total == 0) return std::vector<double>{0};
            const double mean = sum / total;
            return std::vector<double>{variance ? squares / total - mean * mean : mean};
          },
      .tol = {.forward = 1e-6f, .grad = 1e-5f},
      .differentiable = {0},
      .row_invariant = false};
  if (weighted) op_case.inputs.push_back({{rows}});
  return op_case;
}

TEST(MeanRows, MatchesTheDefinition) {
  for (const int64_t rows : {1, 2, 40, 1000, 3100}) {
    for (const bool compacted : {false, true}) {
      check(rows_case(rows, false, false, compacted));
      check(rows_case(rows, true, false, compacted));
      check(rows_case(rows, false, true, compacted));
    }
  }
}

TEST(MeanRows, NothingToAverage) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    const auto value = [&](const Tensor& t) { return host_values(ctx, t)[0]; };
    EXPECT_EQ(value(mean_rows(ctx, floats(ctx, {}))), 0.0f);
    EXPECT_EQ(value(variance_rows(ctx, floats(ctx, {}))), 0.0f);
    EXPECT_EQ(value(mean_rows(ctx, floats(ctx, {1, 2}), floats(ctx, {0, 0}))), 0.0f);
    EXPECT_EQ(value(mean_rows(ctx, floats(ctx, {NAN, 2}), floats(ctx, {0, 1}))), 2.0f);
  }
}

TEST(WeightedSum, MatchesTheDefinition) {
  check({.name = "weighted_sum",
         .inputs = {{{1}}, {{1}}, {{1}}},
         .run =
             [](Context& ctx, std::span<const Tensor> in) {
               const std::vector<Tensor> scalars{in[0], in[1], in[0], detach(in[2])};
               return weighted_sum(ctx, scalars, std::vector<float>{2.0f, -0.5f, 1.0f, 0.0f});
             },
         .reference =
             [](std::span<const Tensor> in) {
               return std::vector<double>{3 * number(in[0], 0) - 0.5 * number(in[1], 0)};
             },
         .tol = {.forward = 1e-6f, .grad = 1e-5f},
         .row_invariant = false});
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    EXPECT_EQ(host_values(ctx, weighted_sum(ctx, {}, {})), std::vector<float>{0});
  }
}

TEST(WeightedSum, ManyTerms) {
  for (const size_t terms : {31u, 32u, 33u, 64u, 70u}) {
    check({.name = "weighted_sum of " + std::to_string(terms),
           .inputs = {{{1}}, {{1}}},
           .run =
               [=](Context& ctx, std::span<const Tensor> in) {
                 std::vector<Tensor> scalars;
                 std::vector<float> weights;
                 for (size_t i = 0; i < terms; ++i) {
                   scalars.push_back(in[i % 2]);
                   weights.push_back(0.1f * static_cast<float>(i));
                 }
                 return weighted_sum(ctx, scalars, weights);
               },
           .reference =
               [=](std::span<const Tensor> in) {
                 double sum = 0;
                 for (size_t i = 0; i < terms; ++i)
                   sum += 0.1 * static_cast<double>(i) * number(in[i % 2], 0);
                 return std::vector<double>{sum};
               },
           .tol = {.forward = 1e-6f, .grad = 1e-5f},
           .row_invariant = false});
  }
}

// The share is constant where p changes, so no difference sees the gradient.
TEST(KeptShare, CountsAndLearnsInEveryRow) {
  for (const Device device : devices_to_check()) {
    for (const int64_t rows : {0, 1, 7, 3000}) {
      Context ctx({.device = device, .threads = 2});
      const std::vector<float> p(static_cast<size_t>(rows), 0.25f);
      const auto share = [&](const RowSet& kept, double expected) {
        Tape tape(device);
        const TapeScope taped(ctx, tape);
        Tensor sum = Tensor::owned(device, DType::kF32, {rows});
        const Tensor learns = parameter(floats(ctx, p), sum), out = kept_share(ctx, kept, learns);
        EXPECT_NEAR(host_values(ctx, out)[0], expected, 1e-6) << rows;
        const float factor = 3.0f;
        tape.backward(ctx, weighted_sum(ctx, {&out, 1}, {&factor, 1}));
        for (const float d : host_values(ctx, sum)) ASSERT_NEAR(d, 3.0 / static_cast<double>(rows), 1e-6);
      };
      const RowSet some = every_third(ctx, rows);
      share(some, rows > 0 ? static_cast<double>((rows + 1) / 3) / static_cast<double>(rows) : 0.0);
      share(RowSet::all(rows), rows > 0 ? 1.0 : 0.0);
      share(RowSet::none(rows), 0.0);
    }
  }
}

TEST(Reduce, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {3});
  EXPECT_EQ(refusal([&] { mean_rows(ctx, x, Tensor::empty(ctx, DType::kF32, {4})); }),
            "mean_rows: weights must be f32 (3), got f32 (4)");
  EXPECT_EQ(refusal([&] {
              variance_rows(ctx, x.reshape({1, 3}));
            }),
            "variance_rows: x must be f32 (rows), got f32 (1, 3)");
  EXPECT_EQ(refusal([&] { mean_columns(ctx, x); }),
            "mean_columns: x must be f32 (rows, d) with d above 0, got (3)");
  EXPECT_EQ(refusal([&] { weighted_sum(ctx, std::vector<Tensor>{x}, std::vector<float>{1.0f}); }),
            "weighted_sum: scalar must be f32 (1), got f32 (3)");
  EXPECT_EQ(refusal([&] { weighted_sum(ctx, {}, std::vector<float>{1.0f}); }),
            "weighted_sum: 0 scalars, 1 weights");
  EXPECT_EQ(refusal([&] { kept_share(ctx, RowSet::all(4), x); }), "kept_share: 4 rows kept of 3");
}

}  // namespace
}  // namespace fathom
