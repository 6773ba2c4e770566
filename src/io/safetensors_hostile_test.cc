// One case for each way in which a safetensors file or its index can lie.
#include <limits>

#include "io/safetensors.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;

std::string file_of(std::string_view header, size_t data_bytes) {
  return Bytes().u64(header.size()).raw(header).zeros(data_bytes).str();
}

// {"w": {"dtype": "F32", "shape": SHAPE, "data_offsets": OFFSETS}}
std::string one_tensor(const std::string& shape, const std::string& offsets, size_t data_bytes,
                       const std::string& dtype = "\"F32\"") {
  return file_of("{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}",
                 data_bytes);
}

std::string two_tensors(const std::string& first, const std::string& second, size_t data_bytes) {
  const auto entry = [](const std::string& offsets) {
    return R"({"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}";
  };
  return file_of("{\"a\":" + entry(first) + ",\"b\":" + entry(second) + "}", data_bytes);
}

struct FileCase {
  const char* name;
  std::string bytes;
  const char* expected;
};

void PrintTo(const FileCase& c, std::ostream* out) {
  *out << c.name;
}

std::vector<FileCase> file_header_cases() {
  const uint64_t huge = std::numeric_limits<uint64_t>::max();
  const std::string deep = "{\"a\":" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  const std::string deep_objects = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
    return text;
  }();
  return {
      {"empty", "", "expected at least 8 bytes, the file has 0"},
      {"seven_bytes", "1234567", "expected at least 8 bytes, the file has 7"},
      {"length_2_64", Bytes().u64(huge).raw("{}").str(), "the header has 18446744073709551615 bytes"},
      {"length_that_wraps_with_8", Bytes().u64(huge - 7).raw("{}").str(), "more than the 100000000 allowed"},
      {"length_past_the_file", Bytes().u64(3).raw("{}").str(), "the header has 3 bytes, 2 are left"},
      {"length_0", Bytes().u64(0).raw("{}").str(), "must start with '{'"},
      {"starts_with_space", file_of(" {}", 0), "must start with '{', got ' '"},
      {"starts_with_bracket", file_of("[]", 0), "must start with '{', got '['"},
      {"not_json", file_of("{hello}", 0), "not valid JSON"},
      {"unfinished", file_of("{\"a\":", 0), "not valid JSON"},
      {"two_values", file_of("{}{}", 0), "not valid JSON"},
      {"not_utf8", file_of("{\"\xff\":1}", 0), "not valid JSON"},
      {"control_character_in_name", file_of("{\"\x1b\":1}", 0), "not valid JSON"},
      {"deep_arrays", file_of(deep, 0), "must be an object, got an array"},
      {"deep_objects", file_of(deep_objects, 0), "expected dtype, shape and data_offsets"},
      {"deep_in_shape", file_of(R"({"w":{"dtype":"F32","shape":[[[[1]]]],"data_offsets":[0,4]}})", 4),
       "nested deeper than 3"},
      {"duplicate_tensor",
       file_of(
           R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
           0),
       "the key 'w' is there twice"},
      {"duplicate_escaped",
       file_of(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0077":{}})", 0),
       "the key 'w' is there twice"},
      {"duplicate_field", file_of(R"({"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0),
       "the key 'dtype' is there twice"},
      {"duplicate_metadata", file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0),
       "the key 'a' is there twice"},
      {"metadata_not_an_object", file_of(R"({"__metadata__":"x"})", 0),
       "__metadata__ must be an object, got a string"},
      {"metadata_not_strings", file_of(R"({"__metadata__":{"a":1}})", 0),
       "__metadata__ 'a' must be a string, got 1"},
      {"metadata_nested", file_of(R"({"__metadata__":{"a":{}}})", 0),
       "__metadata__ 'a' must be a string, got an object"},
      {"tensor_not_an_object", file_of(R"({"w":null})", 0), "tensor 'w' must be an object, got null"},
      {"tensor_name_escaped", file_of(R"({"a\nb":7})", 0), "tensor 'a\\x0ab' must be"},
      {"unknown_field", file_of(R"({"w":{"dtype":"U8","stride":[1]}})", 0), "has a field 'stride'"},
      {"trailing_bytes_without_tensors", file_of("{}", 4), "4 trailing bytes"},
  };
}

std::vector<FileCase> file_tensor_cases() {
  return {
      {"no_dtype", file_of(R"({"w":{"shape":[0],"data_offsets":[0,0]}})", 0), "has no dtype"},
      {"no_shape", file_of(R"({"w":{"dtype":"U8","data_offsets":[0,0]}})", 0), "has no shape"},
      {"no_offsets", file_of(R"({"w":{"dtype":"U8","shape":[0]}})", 0), "has no data_offsets"},
      {"dtype_a_number", one_tensor("[1]", "[0,4]", 4, "32"), "dtype of tensor 'w' must be a string, got 32"},
      {"dtype_unknown", one_tensor("[1]", "[0,4]", 4, "\"F31\""), "unknown dtype 'F31'"},
      {"dtype_lower_case", one_tensor("[1]", "[0,4]", 4, "\"f32\""), "unknown dtype 'f32'"},
      {"shape_a_number", one_tensor("4", "[0,16]", 16),
       "shape of tensor 'w' must be an array of whole numbers, got 4"},
      {"shape_negative", one_tensor("[-1]", "[0,4]", 4), "whole numbers, got -1"},
      {"shape_fraction", one_tensor("[1.5]", "[0,6]", 6), "whole numbers, got 1.5"},
      {"shape_exponent", one_tensor("[1e0]", "[0,4]", 4), "whole numbers, got 1e0"},
      {"shape_past_2_64", one_tensor("[18446744073709551616]", "[0,4]", 4),
       "whole numbers, got 18446744073709551616"},
      {"shape_strings", one_tensor("[\"4\"]", "[0,16]", 16), "whole numbers, got a string"},
      {"shape_of_33_dims",
       one_tensor(
           "[1" +
               [] {
                 std::string t;
                 for (int i = 0; i < 32; ++i) t += ",1";
                 return t;
               }() +
               "]",
           "[0,4]", 4),
       "more than 32 dimensions"},
      {"product_wraps_to_0", one_tensor("[4294967296,4294967296]", "[0,0]", 0), "more than 2^63 bits"},
      {"product_wraps_to_4", one_tensor("[4611686018427387905]", "[0,4]", 4), "more than 2^63 bits"},
      {"stride_wraps_beside_0", one_tensor("[0,4294967296,4294967296]", "[0,0]", 0), "more than 2^63 bits"},
      {"offsets_one_number", one_tensor("[1]", "[0]", 4), "array of two whole numbers, got 1 numbers"},
      {"offsets_three_numbers", one_tensor("[1]", "[0,4,8]", 4),
       "array of two whole numbers, got more than two"},
      {"offsets_a_string", one_tensor("[1]", "\"0,4\"", 4), "array of two whole numbers, got a string"},
      {"offsets_negative", one_tensor("[1]", "[-4,0]", 4), "array of two whole numbers, got -4"},
      {"offsets_fractions", one_tensor("[1]", "[0,4.0]", 4), "array of two whole numbers, got 4.0"},
      {"offsets_true", one_tensor("[1]", "[true,4]", 4), "array of two whole numbers, got true"},
      {"offsets_inverted", one_tensor("[1]", "[4,0]", 4), "inverted: [4, 0]"},
      {"offsets_past_the_end", one_tensor("[2]", "[0,8]", 4),
       "ends at byte 8 of the data, past its end at 4"},
      {"offsets_near_2_64", one_tensor("[1]", "[18446744073709551611,18446744073709551615]", 4),
       "past its end at 4"},
      {"span_too_small", one_tensor("[2]", "[0,4]", 4), "needs 8 bytes, data_offsets give 4"},
      {"span_too_large", one_tensor("[1]", "[0,8]", 8), "needs 4 bytes, data_offsets give 8"},
      {"hole_at_the_start", one_tensor("[1]", "[4,8]", 8), "a hole of 4 bytes before tensor 'w'"},
      {"trailing_bytes", one_tensor("[1]", "[0,4]", 5), "1 trailing bytes after the last tensor"},
      {"overlap", two_tensors("[0,8]", "[4,12]", 12), "tensor 'b' overlaps"},
      {"same_place", two_tensors("[0,8]", "[0,8]", 8), "tensor 'b' overlaps"},
      {"hole", two_tensors("[0,8]", "[12,20]", 20), "a hole of 4 bytes before tensor 'b'"},
      {"half_a_byte", one_tensor("[3]", "[0,1]", 1, "\"F4\""), "does not fill whole bytes"},
  };
}

class SafetensorsHostile : public ::testing::TestWithParam<FileCase> {};

TEST_P(SafetensorsHostile, IsRefused) {
  const ExactCopy copy(GetParam().bytes);
  const std::string message = error_of([&] { SafetensorsFile::parse(copy.bytes(), copy.memory, "bad"); });
  EXPECT_TRUE(message.starts_with("bad: safetensors: ")) << message;
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
  EXPECT_LT(message.size(), 400u) << message;
}

const auto kFileCaseName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Header, SafetensorsHostile, ::testing::ValuesIn(file_header_cases()), kFileCaseName);
INSTANTIATE_TEST_SUITE_P(Tensors, SafetensorsHostile, ::testing::ValuesIn(file_tensor_cases()),
                         kFileCaseName);

std::vector<FileCase> index_cases() {
  const auto shard = [](const std::string& file) { return "{\"weight_map\":{\"w\":\"" + file + "\"}}"; };
  return {
      {"empty", "", "not valid JSON"},
      {"array", "[{\"weight_map\":{}}]", "expected an object, got an array"},
      {"number", "7", "expected an object, got 7"},
      {"no_map", "{\"metadata\":{\"weight_map\":{\"w\":\"a\"}}}", "expected a weight_map, there is none"},
      {"empty_map", "{\"weight_map\":{}}", "the weight_map is empty"},
      {"map_an_array", "{\"weight_map\":[\"a\"]}", "weight_map must be an object, got an array"},
      {"map_a_string", "{\"weight_map\":\"a\"}", "weight_map must be an object, got a string"},
      {"map_null", "{\"weight_map\":null}", "weight_map must be an object, got null"},
      {"file_a_number", "{\"weight_map\":{\"w\":1}}", "the file of tensor 'w' must be a string, got 1"},
      {"file_an_object", "{\"weight_map\":{\"w\":{}}}", "must be a string, got an object"},
      {"file_an_array", "{\"weight_map\":{\"w\":[]}}", "must be a string, got an array"},
      {"parent", shard("../secret.safetensors"),
       "'../secret.safetensors', expected the name of a file in the same folder"},
      {"two_dots", shard(".."), "same folder"},
      {"inner_parent", shard("a/../b.safetensors"), "same folder"},
      {"subfolder", shard("sub/b.safetensors"), "same folder"},
      {"absolute", shard("/etc/passwd"), "same folder"},
      {"backslash", shard("..\\\\b.safetensors"), "same folder"},
      {"hidden", shard(".b.safetensors"), "same folder"},
      {"zero_byte", shard("a\\u0000b"), "same folder"},
      {"no_file", shard(""), "same folder"},
      {"duplicate_tensor", "{\"weight_map\":{\"w\":\"a\",\"w\":\"b\"}}", "the key 'w' is there twice"},
      {"duplicate_map", "{\"weight_map\":{\"w\":\"a\"},\"weight_map\":{\"w\":\"a\"}}",
       "the key 'weight_map' is there twice"},
      {"deep", "{\"x\":" + std::string(100'000, '['), "nested deeper than 32"},
  };
}

class IndexHostile : public ::testing::TestWithParam<FileCase> {};

TEST_P(IndexHostile, IsRefused) {
  const std::string message = error_of([&] { parse_safetensors_index(GetParam().bytes, "index.json"); });
  EXPECT_TRUE(message.starts_with("index.json: ")) << message;
  EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, IndexHostile, ::testing::ValuesIn(index_cases()), kFileCaseName);

std::string small_safetensors() {
  return file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]},"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}} )",
      16);
}

TEST(SafetensorsBytes, TruncationAnywhereIsRefused) {
  const std::string whole = small_safetensors();
  const ExactCopy copy(whole);
  ASSERT_EQ(SafetensorsFile::parse(copy.bytes(), copy.memory, "whole")->tensors().size(), 1u);
  for (size_t length = 0; length < whole.size(); ++length) {
    const ExactCopy cut(whole.substr(0, length));
    const std::string message = error_of([&] { SafetensorsFile::parse(cut.bytes(), cut.memory, "cut"); });
    EXPECT_TRUE(message.starts_with("cut: safetensors: ")) << length << ": " << message;
  }
}

TEST(SafetensorsBytes, AChangedByteIsRefusedOrHarmless) {
  const std::string whole = small_safetensors();
  int refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\0', '\x01', '"', '{', '}', '[', '9', ',', '\x7F', '\xFF'}) {
      std::string changed = whole;
      changed[at] = value;
      const ExactCopy copy(changed);
      try {
        const auto file = SafetensorsFile::parse(copy.bytes(), copy.memory, "changed");
        for (const NamedTensor& entry : file->tensors()) touch(entry.tensor);
      } catch (const UserError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace fathom
