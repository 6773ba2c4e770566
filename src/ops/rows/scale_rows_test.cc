#include "ops/rows/scale_rows.h"

#include <gtest/gtest.h>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

OpCase scale_case(int64_t rows, int64_t width, bool each) {
  return {.name = "scale_rows " + to_string(Shape{rows, width}),
          .inputs = {{{rows, width}}, {each ? Shape{rows, width} : Shape{rows}}},
          .run = [](Context& ctx, std::span<const Tensor> in) { return scale_rows(ctx, in[0], in[1]); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < rows * width; ++i)
                  out.push_back(number(in[0], i) * number(in[1], each ? i : i / width));
                return out;
              },
          .tol = {.forward = 1e-6f, .grad = 2e-5f}};
}

TEST(ScaleRows, MatchesTheDefinition) {
  for (const bool each : {false, true}) {
    check(scale_case(5, 64, each));
    check(scale_case(33, 577, each));
    check(scale_case(3, 1, each));
    check(scale_case(0, 8, each));
  }
}

TEST(ScaleRows, OnlyTheKeptRows) {
  constexpr int64_t kRows = 20, kWidth = 70;
  for (const bool each : {false, true}) {
    check({.name = "scale_rows of kept rows",
           .inputs = {{{kRows, kWidth}}, {each ? Shape{kRows, kWidth} : Shape{kRows}}},
           .run =
               [](Context& ctx, std::span<const Tensor> in) {
                 const RowSet kept = every_third(ctx, kRows);
                 return add_rows(
                     ctx, in[0], kept,
                     scale_rows(ctx, gather_rows(ctx, in[0], kept), gather_rows(ctx, in[1], kept)));
               },
           .reference =
               [=](std::span<const Tensor> in) {
                 std::vector<double> out;
                 for (int64_t i = 0; i < kRows * kWidth; ++i)
                   out.push_back(number(in[0], i) *
                                 (1 + (is_third(i / kWidth) ? number(in[1], each ? i : i / kWidth) : 0.0)));
                 return out;
               },
           .tol = {.forward = 1e-6f, .grad = 2e-5f},
           .row_invariant = false});
  }
}

TEST(ScaleRows, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {2, 8});
  EXPECT_EQ(refusal([&] { scale_rows(ctx, x, Tensor::empty(ctx, DType::kF32, {8})); }),
            "scale_rows: gate must be (2) or (2, 8), got (8)");
  EXPECT_NE(refusal([&] { scale_rows(ctx, x, {}); }), "");
  EXPECT_NE(refusal([&] { scale_rows(ctx, x.reshape({16}), x); }), "");
}

}  // namespace
}  // namespace fathom
