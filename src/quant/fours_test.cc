#include "quant/fours.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "quant/formats.h"

namespace fathom {
namespace {

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};
constexpr int64_t kWidth = 96;

// Four rows of any bytes; their scales are finite.
std::vector<uint8_t> random_rows(DType dtype) {
  Rng rng(5);
  std::vector<float> values(static_cast<size_t>(kWidth));
  std::vector<uint8_t> rows(static_cast<size_t>(4 * row_bytes(dtype, kWidth)));
  for (int row = 0; row < 4; ++row) {
    for (float& value : values) value = rng.normal();
    encode_row(dtype, values.data(), rows.data() + row * row_bytes(dtype, kWidth), kWidth);
  }
  return rows;
}

std::vector<uint8_t> to_fours(DType dtype, const std::vector<uint8_t>& rows) {
  std::vector<uint8_t> fours(rows.size());
  rows_to_fours(dtype, rows.data(), kWidth, fours.data());
  return fours;
}

TEST(Fours, ThereAndBackIsTheSameBytes) {
  for (const DType dtype : kTypes) {
    const std::vector<uint8_t> rows = random_rows(dtype), fours = to_fours(dtype, rows);
    EXPECT_NE(fours, rows) << name_of(dtype);
    std::vector<uint8_t> back(rows.size());
    fours_to_rows(dtype, fours.data(), kWidth, back.data());
    EXPECT_EQ(back, rows) << name_of(dtype);
  }
}

TEST(Fours, ARowDecodesAsBefore) {
  for (const DType dtype : kTypes) {
    const std::vector<uint8_t> rows = random_rows(dtype), fours = to_fours(dtype, rows);
    for (int row = 0; row < 4; ++row) {
      std::vector<float> expected(static_cast<size_t>(kWidth)), got(expected.size());
      decode_row(dtype, rows.data() + row * row_bytes(dtype, kWidth), expected.data(), kWidth);
      decode_row_of_fours(dtype, fours.data(), row, got.data(), kWidth);
      EXPECT_EQ(std::memcmp(expected.data(), got.data(), expected.size() * sizeof(float)), 0)
          << name_of(dtype) << " row " << row;
    }
  }
}

// The layout of fours.h, byte by byte.
TEST(Fours, EveryByteIsWhereTheDescriptionSays) {
  for (const DType dtype : kTypes) {
    const std::vector<uint8_t> rows = random_rows(dtype), fours = to_fours(dtype, rows);
    const auto block = static_cast<size_t>(traits(dtype).block_bytes), stride = 3 * block;
    const size_t integers = dtype == DType::kQ8_0 ? 32 : 16, scales = block - integers;
    const uint8_t flip = dtype == DType::kQ4_0 ? 0x88 : 0;
    for (size_t row = 0; row < 4; ++row) {
      for (size_t b = 0; b < 3; ++b) {
        const uint8_t *from = rows.data() + row * stride + b * block, *record = fours.data() + 4 * b * block;
        for (size_t i = 0; i < integers; ++i)
          ASSERT_EQ(record[i / 8 * 32 + row * 8 + i % 8], from[scales + i] ^ flip) << name_of(dtype);
        for (size_t i = 0; i < scales; ++i)
          ASSERT_EQ(record[4 * integers + i / 2 * 8 + row * 2 + i % 2], from[i]) << name_of(dtype);
      }
    }
  }
}

TEST(Fours, OtherFormatsHaveNoSuchLayout) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ5_0, DType::kQ4_K})
    EXPECT_FALSE(has_fours(dtype)) << name_of(dtype);
  uint8_t byte = 0;
  try {
    rows_to_fours(DType::kQ5_0, &byte, 32, &byte);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "q5_0 has no layout in fours");
  }
}

}  // namespace
}  // namespace fathom
