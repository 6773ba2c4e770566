// Files for tools/check_written_files.py, which reads them with the formats' own Python packages: it runs
// this test with FATHOM_SAMPLES set to a folder.
#include <cstdlib>
#include <filesystem>

#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;

std::string sample_path(const std::string& name) {
  const char* folder = std::getenv("FATHOM_SAMPLES");
  return folder ? std::string(folder) + "/" + name : temporary_path(name);
}

void remove_unless_asked_for(const std::string& path) {
  if (!std::getenv("FATHOM_SAMPLES")) std::filesystem::remove(path);
}

TEST(Samples, Gguf) {
  using T = GgufType;
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < kDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (traits(dtype).ggml_type >= 0) tensors.push_back({name_of(dtype), patterned_tensor(dtype, {3, 256})});
  }
  tensors.push_back({"vector", counting_tensor({5})});
  tensors.push_back({"cube", counting_tensor({2, 3, 4, 5})});
  const std::string path = sample_path("sample.gguf");
  write_gguf(path,
             {{"general.architecture", {T::kString, std::string("sample")}},
              {"u8", {T::kU8, int64_t{200}}},
              {"i8", {T::kI8, int64_t{-100}}},
              {"u16", {T::kU16, int64_t{60000}}},
              {"i16", {T::kI16, int64_t{-30000}}},
              {"u32", {T::kU32, int64_t{4000000000}}},
              {"i32", {T::kI32, int64_t{-2000000000}}},
              {"f32", {T::kF32, 1.5}},
              {"bool", {T::kBool, int64_t{1}}},
              {"string", {T::kString, std::string("ünïcode")}},
              {"u64", {T::kU64, static_cast<int64_t>(0xFEDCBA9876543210)}},
              {"i64", {T::kI64, int64_t{-5000000000}}},
              {"f64", {T::kF64, 0.1}},
              {"numbers", {T::kArray, GgufArray{T::kI32, std::vector<int64_t>{1, -2, 3}}}},
              {"scores", {T::kArray, GgufArray{T::kF32, std::vector<double>{0.5, -0.25}}}},
              {"flags", {T::kArray, GgufArray{T::kBool, std::vector<int64_t>{1, 0}}}},
              {"words", {T::kArray, GgufArray{T::kString, std::vector<std::string>{"", "a", "bc"}}}}},
             tensors);
  EXPECT_EQ(GgufFile::open(path)->tensors().size(), tensors.size());
  remove_unless_asked_for(path);
}

TEST(Samples, Safetensors) {
  const std::string path = sample_path("sample.safetensors");
  write_safetensors(path,
                    {{"u8", patterned_tensor(DType::kU8, {3})},
                     {"bf16", patterned_tensor(DType::kBF16, {2, 3})},
                     {"f32", counting_tensor({2, 3, 4, 5})},
                     {"quoted \"ü\"\n", patterned_tensor(DType::kI32, {1})},
                     {"f16", patterned_tensor(DType::kF16, {7})},
                     {"nothing", patterned_tensor(DType::kF32, {0, 4})},
                     {"scalar", counting_tensor({}, 2.5f)}},
                    {{"format", "pt"}, {"note", "a \"b\"\n"}});
  EXPECT_EQ(SafetensorsFile::open(path)->tensors().size(), 7u);
  remove_unless_asked_for(path);
}

}  // namespace
}  // namespace fathom
