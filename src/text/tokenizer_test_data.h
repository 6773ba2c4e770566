// Where the tests of tokenizers find their files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/test_paths.h"

namespace fathom {

inline std::string tokenizer_data(const std::string& name) {
  return std::string(FATHOM_TEST_DATA) + "/tokenizers/" + name;
}

// The large vocabularies are not in the repository: the folder of the unpacked archive, or "" when it is not
// here.
inline std::string large_tokenizer_data() {
  const char* folder = std::getenv("FATHOM_TOKENIZER_DATA");
  return folder != nullptr && std::filesystem::is_directory(folder) ? folder : "";
}

}  // namespace fathom

#define FATHOM_NEEDS_LARGE_TOKENIZERS()       \
  if (fathom::large_tokenizer_data().empty()) \
  GTEST_SKIP() << "skipped: FATHOM_TOKENIZER_DATA is not set to the folder unpacked from tokenizers.tar.xz"
