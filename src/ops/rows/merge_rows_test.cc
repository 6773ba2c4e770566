#include "ops/rows/merge_rows.h"

#include <gtest/gtest.h>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

// fresh: as it is, or gathered (compacted) from its kept rows.
OpCase merge_case(Shape shape, bool gathered) {
  const int64_t rows = shape[0], width = rows > 0 ? shape.numel() / rows : 0;
  return {.name = "merge_rows " + to_string(shape),
          .inputs = {{shape}, {shape}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                const RowSet kept = every_third(ctx, rows);
                const Tensor fresh =
                    gathered ? gather_rows(ctx, in[1].reshape({rows, width}), kept).reshape(shape) : in[1];
                return merge_rows(ctx, in[0], kept, fresh);
              },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t r = 0, place = 0; r < rows; place += is_third(r), ++r)
                  for (int64_t i = 0; i < width; ++i)
                    out.push_back(is_third(r) ? number(in[1], (gathered ? r : place) * width + i)
                                              : number(in[0], r * width + i));
                return out;
              },
          .tol = {.forward = 0.0f, .grad = 1e-5f},
          .row_invariant = false};
}

TEST(MergeRows, MatchesTheDefinition) {
  for (const bool gathered : {false, true}) {
    check(merge_case({7, 5}, gathered));
    check(merge_case({50, 3, 200}, gathered));
    check(merge_case({1, 6}, gathered));  // none kept, and only the device knows
  }
}

TEST(MergeRows, AllAndNone) {
  Context ctx({.threads = 1});
  const Tensor below = floats(ctx, {1, 2, 3, 4}, {2, 2}), fresh = floats(ctx, {5, 6, 7, 8}, {2, 2});
  EXPECT_EQ(merge_rows(ctx, below, RowSet::all(2), fresh).raw(), fresh.raw());
  EXPECT_EQ(merge_rows(ctx, below, RowSet::none(2), {}).raw(), below.raw());
}

TEST(MergeRows, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor below = Tensor::empty(ctx, DType::kF32, {3, 2, 4});
  EXPECT_EQ(refusal([&] {
              merge_rows(ctx, below, RowSet::all(3), Tensor::empty(ctx, DType::kF32, {3, 8}));
            }),
            "merge_rows: fresh must be f32 (3, 2, 4), got f32 (3, 8)");
  EXPECT_EQ(refusal([&] {
              merge_rows(ctx, below, RowSet::all(2), Tensor::empty(ctx, DType::kF32, {2, 2, 4}));
            }),
            "merge_rows: 2 rows kept of 3");
}

}  // namespace
}  // namespace fathom
