// The seeds of the fuzz targets keep what their names promise: valid_* is read, everything else is refused.
#include <filesystem>

#include "io/gguf.h"
#include "io/llama2c.h"
#include "io/safetensors.h"
#include "io/test_bytes.h"
#include "support/test_paths.h"

namespace fathom {
namespace {

using namespace testing_io;

void check_seeds(const std::string& target, const std::function<void(const ExactCopy&)>& read) {
  int valid = 0, refused = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(FATHOM_TEST_DATA) + "/../corpus/" + target)) {
    const std::string name = entry.path().filename();
    const ExactCopy copy(read_text_file(entry.path()));
    if (name.starts_with("valid")) {
      ++valid;
      EXPECT_NO_THROW(read(copy)) << name;
    } else {
      ++refused;
      EXPECT_THROW(read(copy), UserError) << name;
    }
  }
  EXPECT_GT(valid, 1);
  EXPECT_GT(refused, 10);
}

TEST(Corpus, Gguf) {
  check_seeds("gguf_fuzz", [](const ExactCopy& copy) { GgufFile::parse(copy.bytes(), copy.memory, "seed"); });
}

TEST(Corpus, Safetensors) {
  check_seeds("safetensors_fuzz",
              [](const ExactCopy& copy) { SafetensorsFile::parse(copy.bytes(), copy.memory, "seed"); });
}

TEST(Corpus, SafetensorsIndex) {
  check_seeds("safetensors_index_fuzz", [](const ExactCopy& copy) {
    parse_safetensors_index({reinterpret_cast<const char*>(copy.memory.get()), copy.size}, "seed");
  });
}

TEST(Corpus, Llama2c) {
  check_seeds("llama2c_fuzz",
              [](const ExactCopy& copy) { Llama2cFile::parse(copy.bytes(), copy.memory, "seed"); });
}

}  // namespace
}  // namespace fathom
