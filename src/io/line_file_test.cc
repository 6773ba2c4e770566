#include "io/line_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"

namespace fathom {
namespace {

class LineFiles : public testing::Test {
 protected:
  ~LineFiles() override { std::filesystem::remove(path_); }
  std::string bytes() const { return read_text_file(path_); }
  const std::string path_ = testing::TempDir() + "fathom-lines-" + std::to_string(getpid()) + ".jsonl";
};

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  const LineFile file(path, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST_F(LineFiles, WhatWasWrittenIsThereAgain) {
  {
    LineFile file(path_, [](std::string_view) { FAIL(); });
    file.append("one");
    file.append("");
    EXPECT_EQ(file.lines(), 2);
  }
  EXPECT_EQ(lines_of(path_), (std::vector<std::string>{"one", ""}));
  EXPECT_EQ(bytes(), "one\n\n");
}

TEST_F(LineFiles, ATornLineIsCutOff) {
  std::ofstream(path_) << "one\ntwo\nthr";
  {
    LineFile file(path_, [](std::string_view) {});
    EXPECT_EQ(file.lines(), 2);
    file.append("three");
  }
  EXPECT_EQ(bytes(), "one\ntwo\nthree\n");
}

TEST_F(LineFiles, AFileMayBeginAgain) {
  std::ofstream(path_) << "one\ntwo\n";
  LineFile file(
      path_, [](std::string_view) { FAIL(); }, true);
  file.append("three");
  EXPECT_EQ(bytes(), "three\n");
}

TEST_F(LineFiles, OneWriterAtATime) {
  const LineFile first(path_, [](std::string_view) {});
  EXPECT_THROW(LineFile(path_, [](std::string_view) {}), UserError);
}

TEST_F(LineFiles, AFolderIsRefused) {
  EXPECT_THROW(LineFile(testing::TempDir(), [](std::string_view) {}), UserError);
}

// As on a full disk: the line that does not fit leaves nothing behind, and later ones follow the last whole
// one.
TEST_F(LineFiles, ALineThatDoesNotFit) {
  std::signal(SIGXFSZ, SIG_IGN);
  LineFile file(path_, [](std::string_view) {});
  file.append("short");
  rlimit before{}, limit{};
  getrlimit(RLIMIT_FSIZE, &before);
  limit = before;
  limit.rlim_cur = 64;
  setrlimit(RLIMIT_FSIZE, &limit);
  std::string said;
  try {
    file.append(std::string(100, 'x'));
  } catch (const UserError& error) {
    said = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(said.find("its 1 lines are kept"), std::string::npos) << said;
  EXPECT_EQ(bytes(), "short\n");
  file.append("again");
  EXPECT_EQ(bytes(), "short\nagain\n");
}

}  // namespace
}  // namespace fathom
