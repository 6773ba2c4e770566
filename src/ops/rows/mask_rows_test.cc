#include "ops/rows/mask_rows.h"

#include <gtest/gtest.h>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/accumulate.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

enum class Kept { kAll, kNone, kThird };

RowSet rows_of(Context& ctx, Kept kept, int64_t rows) {
  if (kept == Kept::kThird) return every_third(ctx, rows);
  return kept == Kept::kAll ? RowSet::all(rows) : RowSet::none(rows);
}

OpCase mask_case(int64_t rows, int64_t width, Kept kept) {
  return {.name = "mask_rows " + to_string(Shape{rows, width}),
          .inputs = {{{rows, width}}},
          .run = [=](Context& ctx,
                     std::span<const Tensor> in) { return mask_rows(ctx, in[0], rows_of(ctx, kept, rows)); },
          .reference =
              [=](std::span<const Tensor> in) {
                std::vector<double> out;
                for (int64_t i = 0; i < rows * width; ++i) {
                  const bool runs = kept == Kept::kAll || (kept == Kept::kThird && is_third(i / width));
                  out.push_back(runs ? number(in[0], i) : 0.0);
                }
                return out;
              },
          .tol = {.forward = 0.0f, .grad = 1e-5f},
          .row_invariant = false};
}

TEST(MaskRows, MatchesTheDefinition) {
  for (const Kept kept : {Kept::kAll, Kept::kNone, Kept::kThird}) {
    check(mask_case(7, 5, kept));
    check(mask_case(60, 700, kept));
    check(mask_case(0, 5, kept));
  }
}

struct Gradients {
  std::vector<float> x, score;
};

// The gradients of Σ y · r.
template <class Fn>
Gradients straight_through(Device device, const std::vector<float>& x, const std::vector<float>& score,
                           const std::vector<float>& r, Fn op) {
  Context ctx({.device = device, .threads = 2});
  Tape tape(device);
  const TapeScope taped(ctx, tape);
  const Shape shape{static_cast<int64_t>(score.size()), static_cast<int64_t>(x.size() / score.size())};
  Tensor dx = Tensor::owned(device, DType::kF32, shape);
  Tensor ds = Tensor::owned(device, DType::kF32, {shape[0]});
  const Tensor y = op(ctx, parameter(floats(ctx, x, shape), dx), parameter(floats(ctx, score), ds));
  Tensor loss = Tensor::owned(device, DType::kF32, {1});
  differentiate(ctx, {&y}, loss, [&](Context& c, const Tensor&) { accumulate(c, y, floats(c, r, shape)); });
  tape.backward(ctx, loss);
  return {host_values(ctx, dx), host_values(ctx, ds)};
}

// Finite differences see a mask as constant: the surrogate m₀ + (s − s₀) is what is differentiated.
TEST(MaskRows, TheScoreLearnsFromEveryRow) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6}, r{1, 10, 100, 1, 1, 1}, score{0.1f, 0.2f, 0.3f};
  for (const Device device : devices_to_check()) {
    for (const Kept kept : {Kept::kAll, Kept::kNone, Kept::kThird}) {
      const Gradients got =
          straight_through(device, x, score, r, [&](Context& ctx, const Tensor& rows, const Tensor& s) {
            return mask_rows(ctx, rows, rows_of(ctx, kept, 3), s);
          });
      EXPECT_EQ(got.score, (std::vector<float>{21, 304, 11}));
      std::vector<float> dx(6);
      for (size_t i = 0; i < 6; ++i)
        dx[i] = kept == Kept::kAll || (kept == Kept::kThird && i / 2 == 1) ? r[i] : 0.0f;
      EXPECT_EQ(got.x, dx);
    }
  }
}

TEST(ScaleThrough, IsTheSameMemoryAndAGradientForP) {
  Context ctx({.threads = 1});
  const Tensor x = floats(ctx, {1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(scale_through(ctx, x, floats(ctx, {9, 9})).raw(), x.raw());
  for (const Device device : devices_to_check()) {
    const Gradients got =
        straight_through(device, {1, 2, 3, 4}, {0.5f, 0.25f}, {1, 10, 100, 1000}, scale_through);
    EXPECT_EQ(got.x, (std::vector<float>{1, 10, 100, 1000}));
    EXPECT_EQ(got.score, (std::vector<float>{21, 4300}));
  }
}

// Compacted operands: gradients of the rows that are there, and of no others.
TEST(ScaleThrough, OnlyTheKeptRows) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8}, r{1, 1, 1, 1, 1, 1, 1, 2};
  const auto op = [](Context& ctx, const Tensor& rows, const Tensor& p) {
    const RowSet kept = some_rows(ctx, {1, 3, -1, -1}, 2);
    return add_rows(ctx, rows, kept,
                    scale_through(ctx, gather_rows(ctx, rows, kept), gather_rows(ctx, p, kept)));
  };
  for (const Device device : devices_to_check()) {
    const Gradients got = straight_through(device, x, {1, 1, 1, 1}, r, op);
    EXPECT_EQ(got.x, (std::vector<float>{1, 1, 2, 2, 1, 1, 2, 4}));
    EXPECT_EQ(got.score, (std::vector<float>{0, 7, 0, 23}));
  }
}

TEST(MaskRows, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {3, 8});
  EXPECT_EQ(refusal([&] { mask_rows(ctx, x, RowSet::all(3), Tensor::empty(ctx, DType::kF32, {8})); }),
            "mask_rows: score must be f32 (3), got f32 (8)");
  EXPECT_EQ(refusal([&] { mask_rows(ctx, x, RowSet::all(4)); }), "mask_rows: 4 rows kept of 3");
  EXPECT_EQ(refusal([&] { scale_through(ctx, x, {}); }), "scale_through: p must be f32 (3), got nothing");
}

}  // namespace
}  // namespace fathom
