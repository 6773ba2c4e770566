#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace fathom {
namespace {

TEST(DType, NamesGoBothWays) {
  for (int i = 0; i < kDTypes; ++i) {
    DType parsed = DType::kU8;
    EXPECT_TRUE(parse_dtype(name_of(static_cast<DType>(i)), &parsed));
    EXPECT_EQ(parsed, static_cast<DType>(i));
  }
  DType parsed = DType::kU8;
  EXPECT_FALSE(parse_dtype("q9_0", &parsed));
  EXPECT_FALSE(parse_dtype("", &parsed));
  EXPECT_STREQ(name_of(DType::kBF16), "bf16");
  EXPECT_STREQ(name_of(DType::kQ6_K), "q6_k");
}

TEST(DType, IdsOfGguf) {
  for (int i = 0; i < kDTypes; ++i) {
    const int id = traits(static_cast<DType>(i)).ggml_type;
    DType found = DType::kU8;
    EXPECT_EQ(dtype_of_ggml(id, &found), id >= 0);
    if (id >= 0) {
      EXPECT_EQ(found, static_cast<DType>(i));
    }
  }
  DType found = DType::kU8;
  for (const int id : {-1, 4, 5, 9, 1000}) EXPECT_FALSE(dtype_of_ggml(id, &found)) << id;
}

TEST(DType, BytesOfRows) {
  EXPECT_EQ(row_bytes(DType::kF32, 3), 12);
  EXPECT_EQ(row_bytes(DType::kBF16, 3), 6);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 64), 36);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 0), 0);
  try {
    row_bytes(DType::kQ4_K, 576);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "a row of 576 elements is not whole blocks of q4_k (256 per block)");
  }
  EXPECT_TRUE(is_block_format(DType::kQ8_0));
  EXPECT_FALSE(is_block_format(DType::kU8));
}

}  // namespace
}  // namespace fathom
