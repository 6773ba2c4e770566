#include "ops/linear/matrix_rows.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "ops/linear/linear.h"
#include "quant/formats.h"

namespace fathom {
namespace {

Tensor random_matrix(DType dtype, int64_t rows, int64_t width) {
  Rng rng(3);
  Tensor out = Tensor::owned(Device::kCpu, dtype, {rows, width});
  std::vector<float> values(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows; ++r) {
    for (float& value : values) value = rng.normal();
    encode_row(dtype, values.data(), out.data<std::byte>() + r * row_bytes(dtype, width), width);
  }
  return out;
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// More than one strip, and with them more threads than one.
TEST(MatrixRows, ALargeMatrixGoesThereAndBack) {
  Context ctx({.threads = 2});
  const Tensor rows = random_matrix(DType::kQ8_0, 4096, 2080);  // 8.6 MiB
  const Tensor fours = in_fours(ctx, rows), back = in_rows(ctx, fours);
  EXPECT_EQ(fours.layout(), Layout::kFours);
  EXPECT_EQ(back.layout(), Layout::kRows);
  EXPECT_EQ(std::memcmp(rows.raw(), back.raw(), static_cast<size_t>(rows.nbytes())), 0);
  EXPECT_NE(std::memcmp(rows.raw(), fours.raw(), static_cast<size_t>(rows.nbytes())), 0);
  EXPECT_EQ(in_fours(ctx, fours).raw(), fours.raw());
  EXPECT_EQ(in_rows(ctx, rows).raw(), rows.raw());
}

TEST(MatrixRows, ARowIsTheSameInBothLayouts) {
  Context ctx({.threads = 1});
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
    const Tensor rows = random_matrix(dtype, 12, 96), fours = in_fours(ctx, rows);
    std::vector<float> expected(96), got(96);
    for (int64_t r = 0; r < 12; ++r) {
      decode_row(dtype, rows.data<std::byte>() + r * row_bytes(dtype, 96), expected.data(), 96);
      decode_matrix_row(rows, r, got.data());
      EXPECT_EQ(got, expected) << name_of(dtype) << " row " << r;
      decode_matrix_row(fours, r, got.data());
      EXPECT_EQ(got, expected) << name_of(dtype) << " row " << r << " of fours";
    }
  }
}

TEST(MatrixRows, SaysWhatHasNoFours) {
  Context ctx({.threads = 1});
  EXPECT_EQ(refusal([&] { in_fours(ctx, random_matrix(DType::kQ5_0, 4, 32)); }),
            "in_fours: q5_0 (4, 32) has no such layout");
  EXPECT_EQ(refusal([&] { in_fours(ctx, random_matrix(DType::kQ8_0, 6, 32)); }),
            "in_fours: q8_0 (6, 32) has no such layout");
}

// Fours of one context in another, whose instruction set does not know them.
TEST(MatrixRows, ProductsThatDoNotKnowFoursRefuseThem) {
  ASSERT_EQ(setenv("FATHOM_ISA", "scalar", 1), 0);
  Context ctx({.threads = 1});
  ASSERT_EQ(unsetenv("FATHOM_ISA"), 0);
  const Tensor x = Tensor::owned(Device::kCpu, DType::kF32, {1, 32}),
               weight = in_fours(ctx, random_matrix(DType::kQ8_0, 4, 32));
  EXPECT_EQ(refusal([&] { linear(ctx, x, weight); }),
            "linear: weight is q8_0 in fours, which scalar has no products for");
}

}  // namespace
}  // namespace fathom
