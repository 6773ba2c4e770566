#include "io/gguf.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "io/ggml_type.h"
#include "io/gguf_parser.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;

constexpr int64_t kLargeU64 = static_cast<int64_t>(0xFEDCBA9876543210);  // as bits

std::vector<GgufKeyValue> one_of_each() {
  using T = GgufType;
  return {
      {"u8", {T::kU8, int64_t{255}}},
      {"i8", {T::kI8, int64_t{-128}}},
      {"u16", {T::kU16, int64_t{65535}}},
      {"i16", {T::kI16, int64_t{-32768}}},
      {"u32", {T::kU32, int64_t{4294967295}}},
      {"i32", {T::kI32, int64_t{-2147483648}}},
      {"f32", {T::kF32, double{0.1f}}},
      {"bool", {T::kBool, int64_t{1}}},
      {"string", {T::kString, std::string("zero \0 and ünïcode", 20)}},
      {"u64", {T::kU64, int64_t{123456789012345}}},
      {"large_u64", {T::kU64, kLargeU64}},
      {"i64", {T::kI64, std::numeric_limits<int64_t>::min()}},
      {"f64", {T::kF64, 0.1}},
      {"empty", {T::kString, std::string()}},
      {"array.u8", {T::kArray, GgufArray{T::kU8, std::vector<int64_t>{0, 200, 255}}}},
      {"array.i16", {T::kArray, GgufArray{T::kI16, std::vector<int64_t>{-1, 5}}}},
      {"array.i64", {T::kArray, GgufArray{T::kI64, std::vector<int64_t>{-5}}}},
      {"array.f32", {T::kArray, GgufArray{T::kF32, std::vector<double>{1.5, -2.25}}}},
      {"array.f64", {T::kArray, GgufArray{T::kF64, std::vector<double>{1e300}}}},
      {"array.bool", {T::kArray, GgufArray{T::kBool, std::vector<int64_t>{1, 0, 1}}}},
      {"array.string",
       {T::kArray, GgufArray{T::kString, std::vector<std::string>{"", "a", std::string(3000, 'x')}}}},
      {"array.empty", {T::kArray, GgufArray{T::kU32, std::vector<int64_t>{}}}},
  };
}

// A tensor of each dtype that the format stores.
std::vector<NamedTensor> tensors_of_each_dtype() {
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (traits(dtype).ggml_type >= 0)
      tensors.push_back({std::string("t.") + name_of(dtype), patterned_tensor(dtype, {3, 256})});
  }
  tensors.push_back({"vector", counting_tensor({5})});
  tensors.push_back({"cube", counting_tensor({2, 3, 4, 5})});
  return tensors;
}

TEST(Gguf, WhatIsWrittenIsReadBack) {
  const std::string path = temporary_path("gguf");
  const auto metadata = one_of_each();
  const auto tensors = tensors_of_each_dtype();
  write_gguf(path, metadata, tensors);
  for (const auto mode : {MappedFile::Mode::kMap, MappedFile::Mode::kRead}) {
    const auto file = GgufFile::open(path, mode);
    EXPECT_EQ(file->version(), 3u);
    EXPECT_EQ(file->path(), path);
    ASSERT_EQ(file->metadata().size(), metadata.size());
    for (size_t i = 0; i < metadata.size(); ++i)
      EXPECT_TRUE(file->metadata()[i] == metadata[i]) << metadata[i].key;
    ASSERT_EQ(file->tensors().size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const GgufTensorInfo& info = file->tensors()[i];
      EXPECT_EQ(info.name, tensors[i].name);
      EXPECT_EQ(info.offset % 32, 0u);
      EXPECT_TRUE(same_bytes(file->tensor(info), tensors[i].tensor)) << info.name;
      EXPECT_EQ(file->find_tensor(info.name), &info);
    }
  }
  std::filesystem::remove(path);
}

TEST(Gguf, RewritingGivesTheSameBytes) {
  const std::string first = temporary_path("1.gguf"), second = temporary_path("2.gguf");
  write_gguf(first, one_of_each(), tensors_of_each_dtype());
  const auto file = GgufFile::open(first);
  std::vector<NamedTensor> tensors;
  for (const GgufTensorInfo& info : file->tensors()) tensors.push_back({info.name, file->tensor(info)});
  write_gguf(second, file->metadata(), tensors);
  EXPECT_EQ(read_text_file(first), read_text_file(second));
  // In place: the mapping of the file that is replaced stays readable.
  write_gguf(first, file->metadata(), tensors);
  EXPECT_EQ(read_text_file(first), read_text_file(second));
  std::filesystem::remove(first);
  std::filesystem::remove(second);
}

TEST(Gguf, ATensorKeepsTheMappingAlive) {
  const std::string path = temporary_path("gguf");
  write_gguf(path, {}, {{"w", counting_tensor({8}, 3)}});
  Tensor tensor;
  {
    const auto file = GgufFile::open(path);
    tensor = file->tensor(*file->find_tensor("w"));
  }
  EXPECT_EQ(tensor.data<float>()[7], 10.0f);
  std::filesystem::remove(path);
}

TEST(Gguf, TypedAccess) {
  const std::string path = temporary_path("gguf");
  write_gguf(path, one_of_each(), {});
  const auto file = GgufFile::open(path);
  EXPECT_EQ(file->integer("u32"), 4294967295);
  EXPECT_EQ(file->integer("i8", 7), -128);
  EXPECT_EQ(file->integer("absent", 7), 7);
  EXPECT_EQ(file->number("f32"), double{0.1f});
  EXPECT_EQ(file->number("u8"), 255.0);
  EXPECT_EQ(file->number("absent", 2.5), 2.5);
  EXPECT_TRUE(file->boolean("bool", false));
  EXPECT_TRUE(file->boolean("absent", true));
  EXPECT_EQ(file->string("empty"), "");
  EXPECT_EQ(file->string("absent", "else"), "else");
  EXPECT_EQ(std::get<std::vector<int64_t>>(file->array("array.i16")->values)[0], -1);
  EXPECT_EQ(file->array("absent"), nullptr);
  EXPECT_EQ(file->find("absent"), nullptr);
  EXPECT_EQ(file->find_tensor("absent"), nullptr);

  const auto expect_error = [&](const std::function<void()>& action, const char* text) {
    const std::string message = error_of(action);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect_error([&] { file->integer("absent"); }, "gguf: the key absent is missing");
  expect_error([&] { file->number("absent"); }, "missing");
  expect_error([&] { file->string("absent"); }, "missing");
  expect_error([&] { file->integer("string"); }, "string must be a whole number, got string");
  expect_error([&] { file->integer("bool", 0); }, "bool must be a whole number, got bool");
  expect_error([&] { file->integer("f32"); }, "must be a whole number, got f32");
  expect_error([&] { file->integer("large_u64"); }, "large_u64 is 18364758544493064720, more than 2^63");
  expect_error([&] { file->number("string", 1); }, "must be a number, got string");
  expect_error([&] { file->boolean("u8", false); }, "must be a boolean, got u8");
  expect_error([&] { file->string("u8", ""); }, "must be a string, got u8");
  expect_error([&] { file->array("u8"); }, "must be an array, got u8");
  std::filesystem::remove(path);
}

TEST(Gguf, Version2AndAnAlignmentOfItsOwn) {
  Bytes bytes;
  bytes.raw("GGUF").u32(2).u64(2).u64(1).string("general.alignment").u32(4).u32(128);
  bytes.string("a").u32(2).u64(2).u64(1).u32(0).u64(0);
  bytes.string("b").u32(1).u64(1).u32(0).u64(128);
  bytes.pad_to(128).put(1.0f).put(2.0f).pad_to(128).put(3.0f);
  const ExactCopy copy(bytes.str());
  const auto file = GgufFile::parse(copy.bytes(), copy.memory, "v2");
  EXPECT_EQ(file->version(), 2u);
  EXPECT_EQ(file->tensors()[0].shape, (Shape{1, 2}));
  EXPECT_EQ(file->tensor(file->tensors()[0]).data<float>()[1], 2.0f);
  EXPECT_EQ(file->tensor(file->tensors()[1]).data<float>()[0], 3.0f);
}

TEST(Gguf, NoTensorsNeedNoDataSection) {
  const ExactCopy copy(Bytes().raw("GGUF").u32(3).u64(0).u64(1).string("k").u32(0).put<uint8_t>(9).str());
  EXPECT_EQ(GgufFile::parse(copy.bytes(), copy.memory, "vocab")->integer("k"), 9);
}

TEST(Gguf, BytesAtAnOddAddressAreCopied) {
  Bytes bytes;
  bytes.raw("GGUF").u32(3).u64(1).u64(0).string("a").u32(1).u64(1).u32(0).u64(0).pad_to(32).put(7.0f);
  const ExactCopy copy("x" + bytes.str());
  const auto file = GgufFile::parse(copy.bytes().subspan(1), copy.memory, "odd");
  EXPECT_EQ(file->tensor(file->tensors()[0]).data<float>()[0], 7.0f);
}

TEST(Gguf, WriterRefusesWhatReadersWould) {
  const std::string path = temporary_path("gguf");
  const Tensor tensor = counting_tensor({4});
  const auto message = [&](const std::vector<GgufKeyValue>& metadata,
                           const std::vector<NamedTensor>& tensors) {
    return error_of([&] { write_gguf(path, metadata, tensors); });
  };
  const GgufKeyValue key{"k", {GgufType::kU8, int64_t{1}}};
  EXPECT_NE(message({key, key}, {}).find("'k' is given twice"), std::string::npos);
  EXPECT_NE(message({{"", key.value}}, {}).find("expected 1 to 65535"), std::string::npos);
  EXPECT_NE(message({}, {{"w", tensor}, {"w", tensor}}).find("'w' is given twice"), std::string::npos);
  EXPECT_NE(message({}, {{std::string(64, 'n'), tensor}}).find("expected 1 to 63"), std::string::npos);
  EXPECT_NE(message({}, {{"w", patterned_tensor(DType::kU8, {4})}}).find("cannot store u8"),
            std::string::npos);
  EXPECT_NE(message({}, {{"w", patterned_tensor(DType::kF32, {0, 4})}}).find("got (0, 4)"),
            std::string::npos);
  EXPECT_THROW(write_gguf(path, {{"k", {GgufType::kString, int64_t{1}}}}, {}), std::logic_error);
  EXPECT_THROW(
      write_gguf(path, {{"k", {GgufType::kArray, GgufArray{GgufType::kF32, std::vector<int64_t>{1}}}}}, {}),
      std::logic_error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Gguf, WriterChoosesTheAlignment) {
  const std::string path = temporary_path("gguf");
  write_gguf(path, {{"general.alignment", {GgufType::kU32, int64_t{64}}}},
             {{"w", counting_tensor({1})}, {"v", counting_tensor({1}, 5)}});
  const auto file = GgufFile::open(path);
  EXPECT_EQ(file->find("general.alignment"), nullptr);
  EXPECT_EQ(file->find_tensor("v")->offset, 32u);
  EXPECT_EQ(file->tensor(*file->find_tensor("v")).data<float>()[0], 5.0f);
  std::filesystem::remove(path);
}

TEST(GgmlType, NamesAreThoseOfTheFormat) {
  EXPECT_EQ(ggml_type_name(0), "F32");
  EXPECT_EQ(ggml_type_name(16), "IQ2_XXS");
  EXPECT_EQ(ggml_type_name(30), "BF16");
  EXPECT_EQ(ggml_type_name(39), "MXFP4");
  EXPECT_EQ(ggml_type_name(42), "Q2_0");
  EXPECT_EQ(ggml_type_name(43), "");
  EXPECT_EQ(supported_ggml_types(),
            "F32, F16, BF16, I32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K");
}

TEST(Gguf, AMissingFileIsNamed) {
  EXPECT_NE(error_of([] { GgufFile::open("/no/such.gguf"); }).find("/no/such.gguf"), std::string::npos);
}

}  // namespace
}  // namespace fathom
