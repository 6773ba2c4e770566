// One case for each way in which a GGUF file can lie.
#include <limits>

#include "io/gguf.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;

constexpr uint32_t kF32 = 0, kQ8_0 = 8;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kHalf = uint64_t{1} << 63;

Bytes header(uint64_t n_tensors, uint64_t n_keys, uint32_t version = 3) {
  return Bytes().raw("GGUF").u32(version).u64(n_tensors).u64(n_keys);
}

Bytes one_key(std::string_view key, GgufType type) {
  return header(0, 1).string(key).u32(static_cast<uint32_t>(type));
}

struct TensorEntry {
  std::string name = "w";
  std::vector<uint64_t> dims{4};
  uint32_t type = kF32;
  uint64_t offset = 0;
};

std::string with_tensors(const std::vector<TensorEntry>& entries, size_t data_bytes) {
  Bytes bytes = header(entries.size(), 0);
  for (const TensorEntry& entry : entries) {
    bytes.string(entry.name).u32(static_cast<uint32_t>(entry.dims.size()));
    for (const uint64_t dim : entry.dims) bytes.u64(dim);
    bytes.u32(entry.type).u64(entry.offset);
  }
  return bytes.pad_to(32).zeros(data_bytes).str();
}

std::string with_alignment(uint32_t alignment) {
  return one_key("general.alignment", GgufType::kU32).u32(alignment).zeros(64).str();
}

struct Case {
  const char* name;
  std::string bytes;
  const char* expected;  // in the message
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

std::vector<Case> header_cases() {
  return {
      {"empty", "", "expected the magic 'GGUF', the file has 0 bytes"},
      {"three_bytes", "GGU", "the file has 3 bytes"},
      {"bad_magic", Bytes().raw("GGML").zeros(60).str(), "got 'GGML'"},
      {"magic_with_control_characters", Bytes().raw("\x1b[2J").zeros(60).str(), "got '\\x1b[2J'"},
      {"big_endian_magic", Bytes().raw("FUGG").zeros(60).str(), "big-endian"},
      {"big_endian_version", header(0, 0, 0x03000000).str(), "big-endian"},
      {"version_0", header(0, 0, 0).str(), "expected version 2 or 3, got 0"},
      {"version_1", header(0, 0, 1).str(), "version 1 is not read"},
      {"version_4", header(0, 0, 4).str(), "expected version 2 or 3, got 4"},
      {"no_version", "GGUF", "truncated: the version"},
      {"no_counts", Bytes().raw("GGUF").u32(3).str(), "truncated: the number of tensors"},
      {"huge_n_keys", header(0, kHuge).str(), "18446744073709551615 keys need"},
      {"n_keys_past_the_file", header(0, 3).zeros(30).str(), "3 keys need"},
      {"huge_n_tensors", header(kHuge, 0).str(), "18446744073709551615 tensors need"},
      {"n_tensors_past_the_file", header(2, 0).zeros(65).str(), "2 tensors need"},
      {"split", one_key("split.count", GgufType::kU16).put<uint16_t>(2).str(), "llama-gguf-split --merge"},
  };
}

std::vector<Case> metadata_cases() {
  const auto array = [](std::string_view key, uint32_t type, uint64_t count) {
    return one_key(key, GgufType::kArray).u32(type).u64(count);
  };
  return {
      {"empty_key", header(0, 1).string("").zeros(20).str(), "key number 0 is empty"},
      {"key_longer_than_the_file", header(0, 1).u64(kHuge).zeros(20).str(), "truncated: a key"},
      {"over_long_key", header(0, 1).string(std::string(65536, 'k')).zeros(20).str(),
       "has 65536 bytes, more than 65535"},
      {"duplicate_key",
       header(0, 2).string("a").u32(0).put<uint8_t>(1).string("a").u32(0).put<uint8_t>(2).zeros(9).str(),
       "the key 'a' is there twice"},
      {"key_with_control_characters",
       header(0, 2).string("a\n").u32(0).put<uint8_t>(1).string("a\n").u32(0).put<uint8_t>(2).zeros(9).str(),
       "'a\\x0a'"},
      {"value_type_13", one_key("k", static_cast<GgufType>(13)).zeros(8).str(),
       "has type 13, expected 0 to 12"},
      {"value_type_negative", one_key("k", static_cast<GgufType>(-1)).zeros(8).str(), "has type 4294967295"},
      {"value_missing", one_key("k", GgufType::kU64).zeros(4).str(), "truncated: a value"},
      {"boolean_2", one_key("k", GgufType::kBool).put<uint8_t>(2).str(), "a boolean must be 0 or 1, got 2"},
      {"string_longer_than_the_file", one_key("k", GgufType::kString).u64(100).raw("abc").str(),
       "truncated: a string"},
      {"string_of_2_64", one_key("k", GgufType::kString).u64(kHuge).raw("abc").str(), "truncated: a string"},
      {"array_longer_than_the_file", array("k", 6, 1000).zeros(40).str(), "array of 1000 elements"},
      {"array_of_2_64", array("k", 0, kHuge).zeros(40).str(), "array of 18446744073709551615 elements"},
      {"array_whose_bytes_wrap", array("k", 10, uint64_t{1} << 61).zeros(40).str(),
       "array of 2305843009213693952"},
      {"array_of_too_many_strings", array("k", 8, 6).zeros(40).str(),
       "array of 6 elements of at least 8 bytes"},
      {"array_string_truncated", array("k", 8, 2).string("ab").u64(50).raw("c").str(),
       "truncated: a string of an array"},
      {"array_type_13", array("k", 13, 1).zeros(8).str(), "has type 13"},
      {"array_of_arrays", array("k", 9, 1).u32(0).u64(1).zeros(8).str(), "array of arrays"},
      {"array_boolean_7", array("k", 7, 1).put<uint8_t>(7).str(), "a boolean must be 0 or 1, got 7"},
      {"alignment_0", with_alignment(0), "must be a power of two, at least 8, got 0"},
      {"alignment_4", with_alignment(4), "got 4"},
      {"alignment_24", with_alignment(24), "got 24"},
      {"alignment_of_wrong_type", one_key("general.alignment", GgufType::kI32).u32(32).str(),
       "must be u32, got i32"},
      {"alignment_string", one_key("general.alignment", GgufType::kString).string("32").str(),
       "must be u32, got string"},
  };
}

std::vector<Case> tensor_cases() {
  const std::string long_name(65, 'n');
  return {
      {"tensor_without_name", with_tensors({{.name = ""}}, 64), "tensor number 0 has no name"},
      {"tensor_name_of_65", with_tensors({{.name = long_name}}, 64), "has 65 bytes, more than 64"},
      {"tensor_name_past_the_file", header(1, 0).u64(kHuge).zeros(40).str(), "truncated: a tensor's name"},
      {"duplicate_tensor", with_tensors({{.name = "w"}, {.name = "w", .offset = 32}}, 64),
       "the tensor 'w' is there twice"},
      {"no_dims", with_tensors({{.name = "w_long_enough", .dims = {}}}, 64),
       "has 0 dimensions, expected 1 to 4"},
      {"five_dims", with_tensors({{.dims = {1, 1, 1, 1, 1}}}, 64), "has 5 dimensions, expected 1 to 4"},
      {"zero_dim", with_tensors({{.dims = {4, 0}}}, 64), "has a dimension 0"},
      {"negative_dim", with_tensors({{.dims = {kHuge}}}, 64), "has a dimension -1"},
      {"product_wraps_to_0", with_tensors({{.dims = {uint64_t{1} << 32, uint64_t{1} << 32}}}, 64),
       "more than 2^63 elements"},
      {"product_wraps_negative", with_tensors({{.dims = {uint64_t{1} << 32, uint64_t{1} << 31}}}, 64),
       "more than 2^63 elements"},
      {"bytes_wrap", with_tensors({{.dims = {uint64_t{1} << 62}}}, 64), "more than 2^63 bytes"},
      {"running_size_wraps",
       with_tensors({{.dims = {kHalf / 4 - 8}}, {.name = "v", .offset = kHalf - 32}}, 64),
       "needs 9223372036854775776 bytes"},
      {"type_too_large", with_tensors({{.type = 1000}}, 64), "has type 1000, which no version"},
      {"type_negative", with_tensors({{.type = 0xFFFFFFFF}}, 64), "has type 4294967295"},
      {"type_removed", with_tensors({{.type = 4}}, 64), "has type Q4_2, which fathom does not read"},
      {"type_iq2_xxs", with_tensors({{.dims = {256}, .type = 16}}, 66),
       "has type IQ2_XXS, which fathom does not read; supported: F32"},
      {"type_mxfp4", with_tensors({{.dims = {32}, .type = 39}}, 64), "has type MXFP4"},
      {"type_tq1_0", with_tensors({{.dims = {256}, .type = 34}}, 64), "has type TQ1_0"},
      {"type_f64", with_tensors({{.type = 28}}, 64), "has type F64"},
      {"row_of_half_a_block", with_tensors({{.dims = {48, 2}, .type = kQ8_0}}, 200),
       "rows of 48 elements, not whole blocks of q8_0"},
      {"offset_not_aligned", with_tensors({{.offset = 8}}, 64),
       "offset 8, not a multiple of the alignment 32"},
      {"offset_of_first_not_0", with_tensors({{.offset = 32}}, 64), "has offset 32, expected 0"},
      {"offsets_overlap", with_tensors({{.dims = {16}}, {.name = "v", .offset = 32}}, 96),
       "'v' has offset 32, expected 64"},
      {"offsets_leave_a_hole", with_tensors({{}, {.name = "v", .offset = 64}}, 96),
       "'v' has offset 64, expected 32"},
      {"offset_near_2_64", with_tensors({{.offset = kHuge - 31}}, 64), "has offset 18446744073709551584"},
      {"dims_larger_than_the_data", with_tensors({{.dims = {17}}}, 64),
       "needs 68 bytes at offset 0, the file has 64 bytes of data"},
      {"last_tensor_cut", with_tensors({{}, {.name = "v", .offset = 32}}, 47),
       "'v' needs 16 bytes at offset 32, the file has 47"},
      {"no_data_section", header(1, 0).string("w").u32(1).u64(4).u32(0).u64(0).str(),
       "truncated: the data of 1 tensors"},
  };
}

class GgufHostile : public ::testing::TestWithParam<Case> {};

TEST_P(GgufHostile, IsRefused) {
  const ExactCopy copy(GetParam().bytes);
  const std::string message = error_of([&] { GgufFile::parse(copy.bytes(), copy.memory, "bad.gguf"); });
  EXPECT_TRUE(message.starts_with("bad.gguf: gguf: ")) << message;
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
  EXPECT_LT(message.size(), 400u) << message;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Header, GgufHostile, ::testing::ValuesIn(header_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Metadata, GgufHostile, ::testing::ValuesIn(metadata_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Tensors, GgufHostile, ::testing::ValuesIn(tensor_cases()), kName);

// Not one of the cases: each of them is built in every test's process.
TEST(GgufBytes, AnArrayOf20MillionIsRefusedThoughItIsThere) {
  const ExactCopy copy(one_key("k", GgufType::kArray).u32(0).u64(20'000'000).zeros(20'000'000).str());
  const std::string message = error_of([&] { GgufFile::parse(copy.bytes(), copy.memory, "large"); });
  EXPECT_NE(message.find("more than the 16777216"), std::string::npos) << message;
}

// A file with every value type and two tensors, the last of which ends with the file.
std::string small_file() {
  Bytes bytes = header(2, 6);
  bytes.string("a.string").u32(8).string("text");
  bytes.string("a.float").u32(6).put(1.5f);
  bytes.string("a.bool").u32(7).put<uint8_t>(1);
  bytes.string("words").u32(9).u32(8).u64(2).string("x").string("yz");
  bytes.string("numbers").u32(9).u32(3).u64(3).put<int16_t>(-1).put<int16_t>(2).put<int16_t>(3);
  bytes.string("general.alignment").u32(4).u32(64);
  bytes.string("m").u32(2).u64(32).u64(2).u32(kQ8_0).u64(0);
  bytes.string("v").u32(1).u64(4).u32(kF32).u64(128);
  return bytes.pad_to(64).zeros(68).pad_to(64).zeros(16).str();
}

TEST(GgufBytes, TruncationAnywhereIsRefused) {
  const std::string whole = small_file();
  const ExactCopy copy(whole);
  ASSERT_EQ(GgufFile::parse(copy.bytes(), copy.memory, "whole")->tensors().size(), 2u);
  for (size_t length = 0; length < whole.size(); ++length) {
    const ExactCopy cut(whole.substr(0, length));
    const std::string message = error_of([&] { GgufFile::parse(cut.bytes(), cut.memory, "cut.gguf"); });
    EXPECT_TRUE(message.starts_with("cut.gguf: gguf: ")) << length << ": " << message;
  }
}

TEST(GgufBytes, AChangedByteIsRefusedOrHarmless) {
  const std::string whole = small_file();
  int refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x20, 0x7F, 0x80, 0xFF}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(value);
      const ExactCopy copy(changed);
      try {
        const auto file = GgufFile::parse(copy.bytes(), copy.memory, "changed");
        for (const GgufTensorInfo& info : file->tensors()) touch(file->tensor(info));
      } catch (const UserError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace fathom
