#include "ops/rows/dropout.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

constexpr DropoutParams kParams{.rate = 0.3f, .seed = 0x123456789ABCDEFull, .stream = 7};

// What an element is multiplied by.
double factor(int32_t key, int32_t position, int64_t column) {
  const uint32_t bits = philox({kParams.stream, static_cast<uint32_t>(column / 4), static_cast<uint32_t>(key),
                                static_cast<uint32_t>(position)},
                               {0x89ABCDEFu, 0x1234567u})[static_cast<size_t>(column % 4)];
  return (bits >> 8) * 0x1p-24 < 0.3f ? 0.0 : 1.0 / 0.7;
}

int32_t key_of(int64_t row) {
  return static_cast<int32_t>(row) / 4 - 1;
}
int32_t position_of(int64_t row) {
  return static_cast<int32_t>(row) % 4 + 10;
}

struct Places {
  Tensor keys, positions;
};
Places places(Context& ctx, int64_t rows) {
  std::vector<int32_t> keys, positions;
  for (int64_t r = 0; r < rows; ++r) {
    keys.push_back(key_of(r));
    positions.push_back(position_of(r));
  }
  return {ints(ctx, keys), ints(ctx, positions)};
}

TEST(Dropout, MatchesTheDefinition) {
  for (const int64_t width : {1, 64, 577}) {
    check({.name = "dropout",
           .inputs = {{{9, width}}},
           .run =
               [](Context& ctx, std::span<const Tensor> in) {
                 const Places at = places(ctx, in[0].dim(0));
                 return dropout(ctx, in[0], kParams, at.keys, at.positions);
               },
           .reference =
               [=](std::span<const Tensor> in) {
                 std::vector<double> out;
                 for (int64_t i = 0; i < 9 * width; ++i)
                   out.push_back(number(in[0], i) *
                                 factor(key_of(i / width), position_of(i / width), i % width));
                 return out;
               },
           .tol = {.forward = 1e-6f, .grad = 2e-5f},
           .row_invariant = false});
  }
}

// A kept row loses what it loses among all rows.
TEST(Dropout, OnlyTheKeptRows) {
  constexpr int64_t kRows = 20, kWidth = 70;
  check(
      {.name = "dropout of kept rows",
       .inputs = {{{kRows, kWidth}}},
       .run =
           [](Context& ctx, std::span<const Tensor> in) {
             const RowSet kept = every_third(ctx, kRows);
             const Places at = places(ctx, kRows);
             return add_rows(ctx, in[0], kept,
                             dropout(ctx, gather_rows(ctx, in[0], kept), kParams,
                                     gather_rows(ctx, at.keys, kept), gather_rows(ctx, at.positions, kept)));
           },
       .reference =
           [](std::span<const Tensor> in) {
             std::vector<double> out;
             for (int64_t i = 0; i < kRows * kWidth; ++i) {
               const int64_t row = i / kWidth;
               out.push_back(number(in[0], i) *
                             (1 + (is_third(row) ? factor(key_of(row), position_of(row), i % kWidth) : 0.0)));
             }
             return out;
           },
       .tol = {.forward = 1e-6f, .grad = 2e-5f},
       .row_invariant = false});
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  Context ctx({.threads = 1});
  const std::vector<float> ones(100 * 400, 1.0f);
  const Places at = places(ctx, 100);
  double sum = 0, gone = 0;
  for (const float value :
       values_of(dropout(ctx, floats(ctx, ones, {100, 400}), kParams, at.keys, at.positions))) {
    sum += value;
    gone += value == 0 ? 1 : 0;
  }
  EXPECT_NEAR(gone / 40000, 0.3, 0.01);
  EXPECT_NEAR(sum / 40000, 1.0, 0.01);
}

TEST(Dropout, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {2, 8});
  const Places at = places(ctx, 2);
  EXPECT_EQ(refusal([&] { dropout(ctx, x, {.rate = 1}, at.keys, at.positions); }),
            "dropout: the rate must be at least 0 and below 1, got 1");
  EXPECT_NE(refusal([&] { dropout(ctx, x, {}, ints(ctx, {1}), at.positions); }), "");
}

}  // namespace
}  // namespace fathom
