#include "ops/rows/add_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

Tensor counting(Context& ctx, Shape shape, float from = 0) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = from + static_cast<float>(i);
  return Tensor::from(ctx, values, shape);
}

TEST(GatherRows, KeptRowsFirstAndNoOthers) {
  for (const int threads : {1, 2, 3}) {
    Context ctx({.threads = threads});
    const Tensor x = counting(ctx, {4, 3});
    const Tensor out = gather_rows(ctx, x, some_rows(ctx, {1, 3, 0, 0}, 2));
    EXPECT_EQ(out.shape(), (Shape{4, 3}));
    const std::vector<float> got = values_of(out.rows(0, 2));
    EXPECT_EQ(got, (std::vector<float>{3, 4, 5, 9, 10, 11}));
  }
}

TEST(GatherRows, IdsAndStridedRows) {
  Context ctx({.threads = 2});
  const Tensor ids = Tensor::from(ctx, std::vector<int32_t>{10, 11, 12}, {3});
  const Tensor got = gather_rows(ctx, ids, some_rows(ctx, {0, 2, 0}, 2));
  EXPECT_EQ(got.data<int32_t>()[0], 10);
  EXPECT_EQ(got.data<int32_t>()[1], 12);
  const Tensor strided = gather_rows(ctx, counting(ctx, {3, 4}).columns(1, 2), some_rows(ctx, {2, 0, 0}, 1));
  EXPECT_EQ(strided.shape(), (Shape{3, 2}));
  EXPECT_EQ(values_of(strided.rows(0, 1)), (std::vector<float>{9, 10}));
}

TEST(GatherRows, RowsOfBf16) {
  Context ctx({.threads = 2});
  Tensor x = Tensor::owned(Device::kCpu, DType::kBF16, {3, 4});
  for (int i = 0; i < 12; ++i) x.data<uint16_t>()[i] = static_cast<uint16_t>(i);
  const Tensor got = gather_rows(ctx, x, some_rows(ctx, {2, 0, 0}, 2));
  EXPECT_EQ(got.dtype(), DType::kBF16);
  const auto* first = got.data<uint16_t>();
  EXPECT_EQ(std::vector<uint16_t>(first, first + 8), (std::vector<uint16_t>{8, 9, 10, 11, 0, 1, 2, 3}));
  EXPECT_THROW(gather_rows(ctx, x.reshape({4, 3}), RowSet::all(4)), UserError);
}

TEST(GatherRows, AllAndNone) {
  Context ctx({.threads = 1});
  const Tensor x = counting(ctx, {2, 3});
  EXPECT_EQ(gather_rows(ctx, x, RowSet::all(2)).raw(), x.raw());
  EXPECT_EQ(gather_rows(ctx, x, RowSet::none(2)).shape(), (Shape{0, 3}));
  EXPECT_THROW(gather_rows(ctx, x, RowSet::all(3)), UserError);
  EXPECT_THROW(gather_rows(ctx, x.reshape({2, 3, 1}), RowSet::all(2)), UserError);
}

TEST(AddRows, OnlyTheKeptRowsChange) {
  for (const int threads : {1, 2, 3}) {
    Context ctx({.threads = threads});
    const int64_t rows = 40, width = 576;  // several tasks
    const Tensor h = counting(ctx, {rows, width}), branch = counting(ctx, {rows, width}, 0.5f);
    std::vector<int32_t> ids(rows, 0);
    const std::vector<int32_t> kept{0, 7, 13, 14, 15, 29, 39};
    std::copy(kept.begin(), kept.end(), ids.begin());
    const Tensor out = add_rows(ctx, h, some_rows(ctx, ids, static_cast<int32_t>(kept.size())), branch);
    size_t next = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const bool is_kept = next < kept.size() && kept[next] == r;
      for (int64_t i = 0; i < width; ++i) {
        const float more = is_kept ? branch.data<float>()[static_cast<int64_t>(next) * width + i] : 0.0f;
        ASSERT_EQ(out.data<float>()[r * width + i], h.data<float>()[r * width + i] + more) << r << " " << i;
      }
      next += is_kept;
    }
  }
}

TEST(AddRows, NobodyKept) {
  Context ctx({.threads = 2});
  const Tensor h = counting(ctx, {3, 5});
  EXPECT_EQ(add_rows(ctx, h, RowSet::none(3), {}).raw(), h.raw());
  const Tensor out = add_rows(ctx, h, some_rows(ctx, {2, 2, 2}, 0), counting(ctx, {3, 5}));
  EXPECT_EQ(values_of(out), values_of(h));
}

TEST(AddRows, AllRows) {
  check({.name = "add_rows",
         .inputs = {{{21, 576}}, {{21, 576}}},
         .run =
             [](Context& ctx, std::span<const Tensor> in) {
               return add_rows(ctx, in[0], RowSet::all(in[0].dim(0)), in[1]);
             },
         .reference =
             [](std::span<const Tensor> in) {
               std::vector<double> out;
               for (int64_t i = 0; i < in[0].numel(); ++i) {
                 out.push_back(double{in[0].data<float>()[i]} + double{in[1].data<float>()[i]});
               }
               return out;
             },
         .tol = {.forward = 1e-7f, .grad = 1e-5f}});
}

// h + [kept] · branch[place]², with branch gathered from x or given as it is.
OpCase join_case(int64_t rows, int64_t width, bool gathered) {
  return {.name = "gather and add",
          .inputs = {{{rows, width}}, {{rows, width}}},
          .run =
              [=](Context& ctx, std::span<const Tensor> in) {
                const RowSet kept = every_third(ctx, rows);
                return add_rows(ctx, in[0], kept, gathered ? gather_rows(ctx, in[1], kept) : in[1]);
              },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                int64_t place = 0;
                for (int64_t r = 0; r < rows; ++r) {
                  for (int64_t i = 0; i < width; ++i)
                    out.push_back(number(in[0], r * width + i) +
                                  (is_third(r) ? number(in[1], (gathered ? r : place) * width + i) : 0.0));
                  place += is_third(r);
                }
                return out;
              },
          .tol = {.forward = 1e-6f, .grad = 1e-5f},
          .row_invariant = false};
}

TEST(AddRows, GradientsGoWhereTheValuesCameFrom) {
  for (const bool gathered : {true, false}) {
    check(join_case(7, 5, gathered));
    check(join_case(60, 700, gathered));
    check(join_case(1, 4, gathered));  // none of the rows is kept, and only the device knows
  }
}

TEST(GatherRows, NumbersOfRows) {
  check({.name = "gather_rows of f32 (rows)",
         .inputs = {{{8, 1}}},
         .run =
             [](Context& ctx, std::span<const Tensor> in) {
               const RowSet kept = every_third(ctx, 8);
               const Tensor got = gather_rows(ctx, in[0].reshape({8}), kept);
               return add_rows(ctx, in[0], kept, got.reshape({8, 1}));
             },
         .reference =
             [](std::span<const Tensor> in) {
               std::vector<double> out;
               for (int64_t r = 0; r < 8; ++r) out.push_back(number(in[0], r) * (is_third(r) ? 2 : 1));
               return out;
             },
         .tol = {.grad = 1e-5f},
         .row_invariant = false});
}

TEST(AddRowsTo, LeavesTheOldOneToATapeThatMayNeedIt) {
  Context ctx({.threads = 1});
  const Tensor branch = counting(ctx, {3, 5}, 100);
  Tensor h = counting(ctx, {3, 5});
  const Tensor same = h;
  add_rows_to(ctx, h, RowSet::all(3), branch);
  EXPECT_EQ(h.raw(), same.raw());
  Tape tape(Device::kCpu);
  const TapeScope taped(ctx, tape);
  const std::vector<float> before = values_of(h);
  add_rows_to(ctx, h, RowSet::all(3), branch);
  EXPECT_NE(h.raw(), same.raw());
  EXPECT_EQ(values_of(same), before);
  EXPECT_EQ(values_of(h)[1], before[1] + 101);
}

TEST(AddRowsTo, TouchesNoOtherRowAndNoOtherColumn) {
  for (const Device device : devices_to_check()) {
    Context ctx({.device = device, .threads = 1});
    const Tensor wide = counting(ctx, {3, 4});
    Tensor h = wide.columns(1, 2);
    add_rows_to(ctx, h, some_rows(ctx, {0, 2, -1}, 2), counting(ctx, {3, 2}, 100));
    EXPECT_EQ(host_values(ctx, wide), (std::vector<float>{0, 101, 103, 3, 4, 5, 6, 7, 8, 111, 113, 11}));
  }
}

TEST(AddRows, RefusesAnotherShape) {
  Context ctx({.threads = 1});
  const Tensor h = counting(ctx, {3, 5});
  EXPECT_THROW(add_rows(ctx, h, RowSet::all(3), counting(ctx, {3, 4})), UserError);
  EXPECT_THROW(add_rows(ctx, h, RowSet::all(2), counting(ctx, {2, 5})), UserError);
}

}  // namespace
}  // namespace fathom
