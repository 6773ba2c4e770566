#include "io/safetensors.h"

#include <filesystem>

#include "io/atomic_file.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;

// A folder of its own, removed with its contents.
struct Folder {
  Folder() : path(temporary_path("dir")) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

std::vector<NamedTensor> storable_tensors() {
  return {{"u8", patterned_tensor(DType::kU8, {3})},
          {"bf16", patterned_tensor(DType::kBF16, {2, 3})},
          {"f32", patterned_tensor(DType::kF32, {2, 3, 4, 5})},
          {"ünïcode \"quoted\"\n", patterned_tensor(DType::kI32, {1})},
          {"f16", patterned_tensor(DType::kF16, {7})},
          {"nothing", patterned_tensor(DType::kF32, {0, 4})},
          {"scalar", patterned_tensor(DType::kF32, {})}};
}

TEST(Safetensors, WhatIsWrittenIsReadBack) {
  const Folder folder;
  const std::string path = folder.path + "/model.safetensors";
  const auto tensors = storable_tensors();
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"other", "a \"b\" \n ü"}};
  write_safetensors(path, tensors, metadata);
  for (const auto mode : {MappedFile::Mode::kMap, MappedFile::Mode::kRead}) {
    const auto file = SafetensorsFile::open(path, mode);
    EXPECT_EQ(file->metadata(), metadata);
    EXPECT_EQ(file->tensors().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      const Tensor* got = file->find(name);
      ASSERT_NE(got, nullptr) << name;
      EXPECT_TRUE(same_bytes(*got, tensor)) << name;
      if (tensor.nbytes() > 0 && mode == MappedFile::Mode::kMap) {
        EXPECT_NE(got->owner().get(), got->raw()) << name << " was copied, though the writer aligns";
      }
    }
    EXPECT_EQ(file->find("absent"), nullptr);
  }
  const std::string bytes = read_text_file(path);
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);  // the header is padded to whole 8 bytes
}

TEST(Safetensors, NothingAtAllIsAFile) {
  const Folder folder;
  write_safetensors(folder.path + "/x", {}, {});
  EXPECT_TRUE(SafetensorsFile::open(folder.path + "/x")->tensors().empty());
}

TEST(Safetensors, ATensorKeepsTheMappingAlive) {
  const Folder folder;
  write_safetensors(folder.path + "/x", {{"w", counting_tensor({8}, 3)}});
  const Tensor tensor = *SafetensorsFile::open(folder.path + "/x")->find("w");
  EXPECT_EQ(tensor.data<float>()[7], 10.0f);
}

TEST(Safetensors, MisalignedTensorsAreCopied) {
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  Bytes bytes;
  bytes.u64(header.size()).raw(header).put<uint8_t>(9).put(1.5f).put(2.5f);
  const ExactCopy copy(bytes.str());
  const auto file = SafetensorsFile::parse(copy.bytes(), copy.memory, "odd");
  const Tensor* b = file->find("b");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b->raw()) % alignof(float), 0u);
  EXPECT_EQ(b->data<float>()[0], 1.5f);
  EXPECT_EQ(b->data<float>()[1], 2.5f);
  EXPECT_EQ(file->find("a")->data<uint8_t>()[0], 9);
}

TEST(Safetensors, TypesWithoutAPlaceAreListed) {
  const std::string header =
      R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[4,12]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("five":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[12,13]},"half":{"dtype":"F4","shape":[2],"data_offsets":[13,14]}})";
  const ExactCopy copy(Bytes().u64(header.size()).raw(header).zeros(14).str());
  const auto file = SafetensorsFile::parse(copy.bytes(), copy.memory, "mixed");
  EXPECT_EQ(file->tensors().size(), 1u);
  ASSERT_EQ(file->unsupported().size(), 3u);
  EXPECT_EQ(file->unsupported()[0].name, "ids");
  EXPECT_EQ(file->unsupported()[0].why, "dtype I64");
  EXPECT_EQ(file->unsupported()[1].why, "5 dimensions");
  EXPECT_EQ(file->unsupported()[2].why, "dtype F4");

  const Folder folder;
  write_file_atomically(folder.path + "/model.safetensors",
                        Bytes().u64(header.size()).raw(header).zeros(14).str());
  const std::string message = error_of([&] { read_safetensors_dir(folder.path); });
  EXPECT_NE(message.find("tensor 'ids' has dtype I64, which fathom does not read"), std::string::npos)
      << message;
  std::vector<UnsupportedTensor> unsupported;
  EXPECT_EQ(read_safetensors_dir(folder.path, MappedFile::Mode::kMap, &unsupported).size(), 1u);
  EXPECT_EQ(unsupported.size(), 3u);
}

TEST(Safetensors, WriterRefusesWhatTheFormatCannotHold) {
  const Folder folder;
  const std::string path = folder.path + "/x";
  const Tensor tensor = counting_tensor({4});
  const auto message = [&](const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    return error_of([&] { write_safetensors(path, tensors, metadata); });
  };
  EXPECT_NE(message({{"w", patterned_tensor(DType::kQ8_0, {32})}}).find("cannot store q8_0"),
            std::string::npos);
  EXPECT_NE(message({{"w", tensor}, {"w", tensor}}).find("given twice"), std::string::npos);
  EXPECT_NE(message({{"__metadata__", tensor}}).find("belongs to the format"), std::string::npos);
  EXPECT_NE(message({{"\xff", tensor}}).find("'\\xff' is not UTF-8"), std::string::npos);
  EXPECT_NE(message({}, {{"k", "\xff"}}).find("is not UTF-8"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder.path));
}

class Shards : public ::testing::Test {
 protected:
  void index(const std::string& weight_map) {
    write_file_atomically(
        folder_.path + "/model.safetensors.index.json",
        R"({"metadata":{"total_size":32,"nested":[{"weight_map":{"x":[1]}}]},"weight_map":)" + weight_map +
            "}");
  }
  void shard(const std::string& name, const std::vector<std::string>& tensors) {
    std::vector<NamedTensor> list;
    list.reserve(tensors.size());
    for (const std::string& tensor : tensors)
      list.push_back({tensor, counting_tensor({4}, static_cast<float>(tensor[0]))});
    write_safetensors(folder_.path + "/" + name, list);
  }
  std::string message() {
    return error_of([&] { read_safetensors_dir(folder_.path); });
  }
  Folder folder_;
};

TEST_F(Shards, AreJoined) {
  index(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})");
  shard("1.safetensors", {"a", "c"});
  shard("2.safetensors", {"b"});
  shard("3.safetensors", {"not asked for"});
  const auto tensors = read_safetensors_dir(folder_.path);
  ASSERT_EQ(tensors.size(), 3u);
  for (const auto& [name, tensor] : tensors)
    EXPECT_EQ(tensor.data<float>()[3], static_cast<float>(name[0]) + 3) << name;
}

TEST_F(Shards, ASingleFileNeedsNoIndex) {
  shard("model.safetensors", {"a", "b"});
  EXPECT_EQ(read_safetensors_dir(folder_.path).size(), 2u);
}

TEST_F(Shards, AMissingShardIsNamed) {
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  shard("1.safetensors", {"a"});
  EXPECT_NE(message().find("2.safetensors"), std::string::npos);
}

TEST_F(Shards, APromisedTensorMustBeThere) {
  index(R"({"a":"1.safetensors","b":"1.safetensors"})");
  shard("1.safetensors", {"a"});
  EXPECT_NE(message().find("tensor 'b' should be in 1.safetensors, which does not hold it"),
            std::string::npos);
}

TEST_F(Shards, ATensorInTheWrongShardIsRefused) {
  index(R"({"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"})");
  shard("1.safetensors", {"a"});
  shard("2.safetensors", {"b", "c"});
  EXPECT_NE(message().find("tensor 'c' should be in 1.safetensors"), std::string::npos);
}

TEST_F(Shards, ATensorInTwoShardsIsRefused) {
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  shard("1.safetensors", {"a"});
  shard("2.safetensors", {"b", "a"});
  EXPECT_NE(message().find("tensor 'a' is in 1.safetensors and in 2.safetensors"), std::string::npos);
}

TEST_F(Shards, ANameThatLeadsElsewhereIsRefusedBeforeAnyFileIsOpened) {
  index(R"({"a":"../../../../etc/passwd"})");
  EXPECT_NE(message().find("expected the name of a file in the same folder"), std::string::npos);
}

TEST_F(Shards, NeitherFileNorIndex) {
  EXPECT_NE(message().find("expected model.safetensors or model.safetensors.index.json, found neither"),
            std::string::npos);
  write_file_atomically(folder_.path + "/pytorch_model.bin", "PK");
  EXPECT_NE(message().find("never opened"), std::string::npos);
}

}  // namespace
}  // namespace fathom
