#include "ops/rows/by_sequence.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

// weights: the third input's, or 1.
OpCase mean_case(int64_t rows, int64_t width, int64_t sequences, bool weighted, bool compacted) {
  OpCase op_case{.name = "mean_by_sequence " + to_string(Shape{rows, width}),
                 .inputs = {{{rows, width}}, {{rows}, DType::kI32, 1.0f, static_cast<int32_t>(sequences)}},
                 .run =
                     [=](Context& ctx, std::span<const Tensor> in) {
                       Tensor x = in[0], sequence = in[1], weights = weighted ? in[2] : Tensor();
                       if (compacted) {
                         const RowSet kept = every_third(ctx, rows);
                         x = gather_rows(ctx, x, kept);
                         sequence = gather_rows(ctx, sequence, kept);
                         if (weighted) weights = gather_rows(ctx, weights, kept);
                       }
                       // One more sequence than there are: it has no rows.
                       return mean_by_sequence(ctx, x, sequence, weights, sequences + 1);
                     },
                 .reference =
                     [=](std::span<const Tensor> in) {
                       std::vector<double> sums(static_cast<size_t>((sequences + 1) * width)),
                           totals(static_cast<size_t>(sequences + 1));
                       for (int64_t r = 0; r < rows; ++r) {
                         if (compacted && !is_third(r)) continue;
                         const double weight = weighted ? number(in[2], r) : 1.0;
                         const int64_t s = in[1].data<int32_t>()[r];
                         totals[static_cast<size_t>(s)] += weight;
                         for (int64_t i = 0; i < width; ++i)
                           sums[static_cast<size_t>(s * width + i)] += weight * number(in[0], r * width + i);
                       }
                       for (size_t i = 0; i < sums.size(); ++i) {
                         const double total = totals[i / static_cast<size_t>(width)];
                         sums[i] = total == 0 ? 0 : sums[i] / total;
                       }
                       return sums;
                     },
                 .tol = {.forward = 2e-5f, .grad = 2e-4f},
                 .differentiable = {0},
                 .row_invariant = false};
  if (weighted) op_case.inputs.push_back({{rows}});
  return op_case;
}

TEST(MeanBySequence, MatchesTheDefinition) {
  for (const bool weighted : {false, true}) {
    for (const bool compacted : {false, true}) {
      check(mean_case(9, 5, 2, weighted, compacted));
      check(mean_case(100, 200, 4, weighted, compacted));
      check(mean_case(3, 4, 1, weighted, compacted));
    }
    check(mean_case(0, 4, 2, weighted, false));
  }
}

TEST(MeanBySequence, RowsOfWeightZeroAreNotRead) {
  Context ctx({.threads = 1});
  const Tensor x = floats(ctx, {NAN, 1, 5, 2}, {4, 1});
  const Tensor got = mean_by_sequence(ctx, x, ints(ctx, {0, 0, 1, 0}), floats(ctx, {0, 1, 0, 3}), 2);
  EXPECT_EQ(values_of(got), (std::vector<float>{1.75f, 0}));
}

OpCase expand_case(int64_t rows, int64_t sequences) {
  return {
      .name = "expand_by_sequence",
      .inputs = {{{sequences}}, {{rows}, DType::kI32, 1.0f, static_cast<int32_t>(sequences)}},
      .run = [](Context& ctx, std::span<const Tensor> in) { return expand_by_sequence(ctx, in[0], in[1]); },
      .reference =
          [=](std::span<const Tensor> in) {
            std::vector<double> out;
            for (int64_t r = 0; r < rows; ++r) out.push_back(number(in[0], in[1].data<int32_t>()[r]));
            return out;
          },
      .tol = {.forward = 0.0f, .grad = 1e-5f},
      .row_invariant = false};
}

TEST(ExpandBySequence, MatchesTheDefinition) {
  check(expand_case(20, 3));
  check(expand_case(1, 1));
  check(expand_case(500, 64));
  check(expand_case(0, 2));
}

TEST(BySequence, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = floats(ctx, {1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(refusal([&] {
              mean_by_sequence(ctx, x, ints(ctx, {0, 2}), {}, 2);
            }),
            "mean_by_sequence: a sequence must be in [0, 2), got 2 in row 1");
  EXPECT_EQ(refusal([&] { expand_by_sequence(ctx, floats(ctx, {1}), ints(ctx, {-1})); }),
            "expand_by_sequence: a sequence must be in [0, 1), got -1 in row 0");
  EXPECT_EQ(refusal([&] { mean_by_sequence(ctx, x, ints(ctx, {0}), {}, 2); }),
            "mean_by_sequence: sequence must be i32 (2), got i32 (1)");
  EXPECT_NE(refusal([&] { mean_by_sequence(ctx, x, ints(ctx, {0, 0}), floats(ctx, {1}), 2); }), "");
}

}  // namespace
}  // namespace fathom
