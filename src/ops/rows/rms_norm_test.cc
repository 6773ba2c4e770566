#include "ops/rows/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/kernels/kept_rows_test.h"
#include "ops/kernels/op_case.h"
#include "ops/rows/add_rows.h"
#include "ops/rows/gather_rows.h"

namespace fathom {
namespace {

OpCase rms_norm_case(Shape shape, RmsNormParams params, float scale = 1.0f) {
  const int64_t width = shape.last();
  return {
      .name = "rms_norm " + to_string(shape),
      .inputs = {{shape, DType::kF32, scale}, {{width}}},
      .run = [=](Context& ctx, std::span<const Tensor> in) { return rms_norm(ctx, in[0], in[1], params); },
      .reference =
          [=](std::span<const Tensor> in) {
            std::vector<double> out;
            const float* x = in[0].data<float>();
            for (int64_t r = 0; r < in[0].numel() / width; ++r, x += width) {
              double squares = 0;
              for (int64_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * x[i];
              const double root = std::sqrt(squares / static_cast<double>(width) + params.eps);
              for (int64_t i = 0; i < width; ++i) {
                const double weight = in[1].data<float>()[i] + static_cast<double>(params.weight_offset);
                out.push_back(x[i] / root * weight);
              }
            }
            return out;
          },
      .tol = {.forward = 2e-6f, .grad = 2e-5f}};
}

TEST(RmsNorm, MatchesTheDefinition) {
  check(rms_norm_case({5, 64}, {}));
  check(rms_norm_case({33, 576}, {.eps = 1e-5f}));
  check(rms_norm_case({300, 40}, {}));
  check(rms_norm_case({3, 4, 16}, {.weight_offset = 1.0f}));
  for (const int64_t width : {1, 7, 8, 31, 33, 40, 65}) check(rms_norm_case({3, width}, {}));
  check(rms_norm_case({2, 64}, {.eps = 1e-6f}, 1e-4f));  // eps as large as the mean square
  check(rms_norm_case({1, 2048}, {}, 1e4f));
}

TEST(RmsNorm, OnlyTheKeptRows) {
  constexpr int64_t kRows = 50, kWidth = 200;  // several tasks
  check({.name = "rms_norm of kept rows",
         .inputs = {{{kRows, kWidth}}, {{kWidth}}},
         .run =
             [](Context& ctx, std::span<const Tensor> in) {
               const RowSet kept = every_third(ctx, kRows);
               return add_rows(ctx, in[0], kept, rms_norm(ctx, gather_rows(ctx, in[0], kept), in[1]));
             },
         .reference =
             [](std::span<const Tensor> in) {
               std::vector<double> out;
               for (int64_t r = 0; r < kRows; ++r) {
                 double squares = 0;
                 for (int64_t i = 0; i < kWidth; ++i) squares += std::pow(number(in[0], r * kWidth + i), 2);
                 const double inverse = is_third(r) ? 1 / std::sqrt(squares / kWidth + 1e-6f) : 0;
                 for (int64_t i = 0; i < kWidth; ++i)
                   out.push_back(number(in[0], r * kWidth + i) * (1 + inverse * number(in[1], i)));
               }
               return out;
             },
         .tol = {.forward = 2e-6f, .grad = 2e-5f},
         .row_invariant = false});
}

TEST(RmsNorm, NoRows) {
  Context ctx({.threads = 2});
  const Tensor out =
      rms_norm(ctx, Tensor::empty(ctx, DType::kF32, {0, 8}), Tensor::owned(Device::kCpu, DType::kF32, {8}));
  EXPECT_EQ(out.shape(), (Shape{0, 8}));
}

TEST(RmsNorm, StridedRowsAreRows) {
  Context ctx({.threads = 1});
  std::vector<float> values(2 * 24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor wide = Tensor::from(ctx, values, {2, 24}),
               weight = Tensor::from(ctx, std::vector<float>(8, 1.0f), {8});
  const Tensor strided = rms_norm(ctx, wide.columns(8, 8), weight);
  for (int64_t r = 0; r < 2; ++r) {
    const std::span<const float> row(values.data() + r * 24 + 8, 8);
    const Tensor dense = rms_norm(ctx, Tensor::from(ctx, row, {1, 8}), weight);
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(strided.data<float>()[r * 8 + i], dense.data<float>()[i]);
  }
}

TEST(RmsNorm, NamesWhatWasExpected) {
  Context ctx({.threads = 1});
  const Tensor x = Tensor::empty(ctx, DType::kF32, {5, 64});
  try {
    rms_norm(ctx, x, Tensor::empty(ctx, DType::kF32, {32}));
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "rms_norm: weight must be f32 (64), got f32 (32)");
  }
  EXPECT_THROW(rms_norm(ctx, Tensor::empty(ctx, DType::kF16, {5, 64}), x), UserError);
  EXPECT_THROW(rms_norm(ctx, {}, x), UserError);
}

}  // namespace
}  // namespace fathom
