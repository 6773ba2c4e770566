#include "io/file_kind.h"

#include <filesystem>

#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;

FileKind kind_of(const std::string& contents, const std::string& suffix = "bin") {
  const std::string path = temporary_path(suffix);
  write_file_atomically(path, contents);
  const FileKind kind = file_kind(path);
  fs::remove(path);
  return kind;
}

TEST(FileKind, FilesAreKnownByTheirFirstBytes) {
  EXPECT_EQ(kind_of(""), FileKind::kEmpty);
  EXPECT_EQ(kind_of("GGUF\x03"), FileKind::kGguf);
  EXPECT_EQ(kind_of("lmgg    "), FileKind::kOldGgml);
  EXPECT_EQ(kind_of("tjgg    "), FileKind::kOldGgml);
  EXPECT_EQ(kind_of("ggla    "), FileKind::kOldGgml);
  EXPECT_EQ(kind_of("PK\x03\x04 archive/data.pkl"), FileKind::kTorchZip);
  EXPECT_EQ(kind_of("\x80\x02}q"), FileKind::kPickle);
  EXPECT_EQ(kind_of("\x80\x04\x95"), FileKind::kPickle);
  EXPECT_EQ(kind_of("24ka\x01"), FileKind::kLlama2cVersioned);
  EXPECT_EQ(kind_of(Bytes().u64(2).raw("{}").str()), FileKind::kSafetensors);
  EXPECT_EQ(kind_of(Bytes().u64(3).raw("{}").str()), FileKind::kUnknown);
  EXPECT_EQ(kind_of("\x08\x07\x12\x07pytorch"), FileKind::kOnnx);
  EXPECT_EQ(kind_of("\x93NUMPY\x01"), FileKind::kNumpy);
  EXPECT_EQ(kind_of("\x89HDF\r\n\x1a\n"), FileKind::kHdf5);
  EXPECT_EQ(kind_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), FileKind::kGitLfsPointer);
  EXPECT_EQ(kind_of("\n<!DOCTYPE html><html>"), FileKind::kHtml);
  EXPECT_EQ(kind_of("{\"model_type\": \"llama\"}"), FileKind::kJson);
  EXPECT_EQ(kind_of("hello"), FileKind::kUnknown);
  // dim 2, hidden 1, one layer, one head, one KV head, vocabulary 1, one position: 29 floats.
  Bytes bytes;
  for (const int32_t field : {2, 1, 1, 1, 1, 1, 1}) bytes.put(field);
  EXPECT_EQ(kind_of(bytes.zeros(4 * (2 + 2 + 16 + 2 + 6 + 2 + 2)).str()), FileKind::kLlama2c);
}

TEST(FileKind, FoldersAreKnownByWhatTheyHold) {
  const std::string folder = temporary_path("dir");
  fs::remove_all(folder);
  EXPECT_EQ(file_kind(folder), FileKind::kMissing);
  fs::create_directories(folder);
  EXPECT_EQ(file_kind(folder), FileKind::kDirectory);
  write_file_atomically(folder + "/adapter_config.json", "{}");
  EXPECT_EQ(file_kind(folder), FileKind::kAdapterDirectory);
  write_file_atomically(folder + "/config.json", "{}");
  EXPECT_EQ(file_kind(folder), FileKind::kHfDirectory);
  fs::remove_all(folder);
}

TEST(FileKind, APickleIsRefusedWithWhatToDo) {
  EXPECT_NE(std::string(describe(FileKind::kPickle)).find("save the model as safetensors"),
            std::string::npos);
  for (int kind = 0; kind <= static_cast<int>(FileKind::kUnknown); ++kind) {
    EXPECT_GT(std::string(describe(static_cast<FileKind>(kind))).size(), 5u) << kind;
  }
}

}  // namespace
}  // namespace fathom
