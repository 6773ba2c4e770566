#include "quant/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "quant/half.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                 DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A file of tools/make_quant_goldens.py.
struct Golden {
  int64_t n = 0;
  std::vector<uint8_t> blocks;
  std::vector<float> values;
};

Golden read_golden(const std::string& kind, DType dtype) {
  const std::string path = std::string(FATHOM_TEST_DATA) + "/quant/" + kind + "_" + name_of(dtype) + ".bin";
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Golden golden;
  if (bytes.size() < 8) throw UserError("cannot read " + path);
  std::memcpy(&golden.n, bytes.data(), 8);
  golden.values.resize(static_cast<size_t>(golden.n));
  golden.blocks.resize(static_cast<size_t>(row_bytes(dtype, golden.n)));
  const size_t value_bytes = golden.values.size() * 4, block_bytes = golden.blocks.size();
  if (bytes.size() != 8 + value_bytes + block_bytes) throw UserError("wrong size of " + path);
  const bool blocks_first = kind == "decode";
  std::memcpy(golden.blocks.data(), bytes.data() + 8 + (blocks_first ? 0 : value_bytes), block_bytes);
  std::memcpy(golden.values.data(), bytes.data() + 8 + (blocks_first ? block_bytes : 0), value_bytes);
  return golden;
}

void expect_decodes_exactly(DType dtype) {
  const Golden golden = read_golden("decode", dtype);
  ASSERT_GE(golden.n, 400);
  std::vector<float> got(golden.values.size());
  decode_row(dtype, golden.blocks.data(), got.data(), golden.n);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(golden.values[i]))
        << name_of(dtype) << " element " << i << ": expected " << golden.values[i] << ", got " << got[i];
  }
}

TEST(Formats, DecodeAsTheReferencePackageBitForBit) {
  for (DType dtype : kBlockTypes) expect_decodes_exactly(dtype);
  expect_decodes_exactly(DType::kF16);
  expect_decodes_exactly(DType::kBF16);
}

TEST(Formats, EncodeAsTheReferencePackageBitForBit) {
  int types = 0;
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!can_encode(dtype) || dtype == DType::kF32) continue;
    ++types;
    const Golden golden = read_golden("encode", dtype);
    std::vector<uint8_t> got(golden.blocks.size());
    encode_row(dtype, golden.values.data(), got.data(), golden.n);
    for (size_t j = 0; j < got.size(); ++j) {
      ASSERT_EQ(got[j], golden.blocks[j]) << name_of(dtype) << " byte " << j;
    }
  }
  EXPECT_EQ(types, 7);
}

TEST(Formats, DecodingNeedsNoAlignment) {
  for (DType dtype : kBlockTypes) {
    const Golden golden = read_golden("decode", dtype);
    std::vector<uint8_t> shifted(golden.blocks.size() + 1);
    std::memcpy(shifted.data() + 1, golden.blocks.data(), golden.blocks.size());
    std::vector<float> got(golden.values.size());
    decode_row(dtype, shifted.data() + 1, got.data(), golden.n);
    EXPECT_EQ(std::memcmp(got.data(), golden.values.data(), got.size() * 4), 0) << name_of(dtype);
  }
}

TEST(Formats, ValuesThatAreNotFiniteDoNotCrash) {
  std::vector<float> x(64, 1.0f);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[40] = -std::numeric_limits<float>::infinity();
  std::vector<uint8_t> blocks(256);
  for (int i = 0; i < kDTypes; ++i) {
    if (can_encode(static_cast<DType>(i))) encode_row(static_cast<DType>(i), x.data(), blocks.data(), 64);
  }
}

TEST(Formats, WrongUseIsAnError) {
  std::vector<float> x(256);
  std::vector<uint8_t> blocks(1024);
  EXPECT_THROW(encode_row(DType::kQ4_K, x.data(), blocks.data(), 256), UserError);
  EXPECT_THROW(encode_row(DType::kQ8_0, x.data(), blocks.data(), 33), UserError);
  EXPECT_THROW(decode_row(DType::kQ6_K, blocks.data(), x.data(), 128), UserError);
  EXPECT_THROW(decode_row(DType::kI32, blocks.data(), x.data(), 4), UserError);
  EXPECT_FALSE(can_encode(DType::kQ6_K));
  EXPECT_FALSE(has_dot_kernel(DType::kQ2_K));
  EXPECT_TRUE(has_dot_kernel(DType::kQ4_K));
}

// All of f16: every value comes back, and what lies between two neighbours goes to the nearer, the middle to
// the even.
TEST(Half, F16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float low = f32_of_f16(half);
    ASSERT_EQ(static_cast<double>(low), std::ldexp(bits < 0x400 ? bits : 1024 + bits % 1024,
                                                   bits < 0x400 ? -24 : static_cast<int>(bits / 1024) - 25));
    ASSERT_EQ(f16_of_f32(low), half);
    ASSERT_EQ(f16_of_f32(-low), half | 0x8000);
    const float high = bits == 0x7bff ? 65536.0f : f32_of_f16(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;
    ASSERT_EQ(f16_of_f32(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(f16_of_f32(std::nextafterf(middle, 0.0f)), bits);
    ASSERT_EQ(f16_of_f32(std::nextafterf(middle, high)), bits + 1);
  }
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(f16_of_f32(infinity), 0x7c00);
  EXPECT_EQ(f16_of_f32(-1e30f), 0xfc00);
  EXPECT_EQ(f32_of_f16(0xfc00), -infinity);
  EXPECT_TRUE(std::isnan(f32_of_f16(f16_of_f32(nan))));
  EXPECT_TRUE(std::isnan(f32_of_f16(f16_of_f32(std::bit_cast<float>(0x7f800001)))));
}

TEST(Half, Bf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x7f7f; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float low = f32_of_bf16(half), middle = std::bit_cast<float>(bits << 16 | 0x8000);
    ASSERT_EQ(bf16_of_f32(low), half);
    ASSERT_EQ(bf16_of_f32(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(bf16_of_f32(-std::nextafterf(middle, 0.0f)), bits | 0x8000);
  }
  EXPECT_TRUE(std::isnan(f32_of_bf16(bf16_of_f32(std::bit_cast<float>(0x7f800001)))));
  EXPECT_EQ(bf16_of_f32(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace fathom
