#include "ops/rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_case.h"

namespace fathom {
namespace {

RowSet some(Context& ctx, std::vector<int32_t> ids, int32_t count) {
  const std::vector<int32_t> number{count};
  return RowSet::some(Tensor::from(ctx, ids, {static_cast<int64_t>(ids.size())}),
                      Tensor::from(ctx, number, {1}));
}

std::vector<float> values_of(const Tensor& t) {
  return {t.data<float>(), t.data<float>() + t.numel()};
}

Tensor counting(Context& ctx, Shape shape, float from = 0) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = from + static_cast<float>(i);
  return Tensor::from(ctx, values, shape);
}

TEST(GatherRows, KeptRowsFirstAndNoOthers) {
  for (const int threads : {1, 2, 3}) {
    Context ctx({.threads = threads});
    const Tensor x = counting(ctx, {4, 3});
    const Tensor out = gather_rows(ctx, x, some(ctx, {1, 3, 0, 0}, 2));
    EXPECT_EQ(out.shape(), (Shape{4, 3}));
    const std::vector<float> got = values_of(out.rows(0, 2));
    EXPECT_EQ(got, (std::vector<float>{3, 4, 5, 9, 10, 11}));
  }
}

TEST(GatherRows, IdsAndStridedRows) {
  Context ctx({.threads = 2});
  const Tensor ids = Tensor::from(ctx, std::vector<int32_t>{10, 11, 12}, {3});
  const Tensor got = gather_rows(ctx, ids, some(ctx, {0, 2, 0}, 2));
  EXPECT_EQ(got.data<int32_t>()[0], 10);
  EXPECT_EQ(got.data<int32_t>()[1], 12);
  const Tensor strided = gather_rows(ctx, counting(ctx, {3, 4}).columns(1, 2), some(ctx, {2, 0, 0}, 1));
  EXPECT_EQ(strided.shape(), (Shape{3, 2}));
  EXPECT_EQ(values_of(strided.rows(0, 1)), (std::vector<float>{9, 10}));
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
    const Tensor out = add_rows(ctx, h, some(ctx, ids, static_cast<int32_t>(kept.size())), branch);
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
  const Tensor out = add_rows(ctx, h, some(ctx, {2, 2, 2}, 0), counting(ctx, {3, 5}));
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
         .tol = {.forward = 1e-7f}});
}

TEST(AddRows, RefusesAnotherShape) {
  Context ctx({.threads = 1});
  const Tensor h = counting(ctx, {3, 5});
  EXPECT_THROW(add_rows(ctx, h, RowSet::all(3), counting(ctx, {3, 4})), UserError);
  EXPECT_THROW(add_rows(ctx, h, RowSet::all(2), counting(ctx, {2, 5})), UserError);
}

}  // namespace
}  // namespace fathom
