#include "base/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace fathom {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "fathom_mapped_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

  std::filesystem::path folder_;
};

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string message_of(const std::string& path, MappedFile::Mode mode) {
  try {
    MappedFile::open(path, mode);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST_F(MappedFileTest, BothModesGiveTheBytes) {
  const std::string text = "some\0bytes" + std::string(10000, 'x'), path = write("file", text);
  for (const auto mode : {MappedFile::Mode::kMap, MappedFile::Mode::kRead}) {
    const auto file = MappedFile::open(path, mode);
    EXPECT_EQ(text_of(*file), text);
    EXPECT_EQ(file->path(), path);
    EXPECT_EQ(MappedFile::open(write("empty", ""), mode)->bytes().size(), 0u);
  }
}

// Pages that this process holds in memory, of a range of whole pages.
int64_t pages_held(std::span<const std::byte> bytes) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(bytes.data());
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= wanted && wanted < end;
    long kilobytes = 0;
    if (here && std::sscanf(line.c_str(), "Rss: %ld kB", &kilobytes) == 1)
      return kilobytes * 1024 / sysconf(_SC_PAGESIZE);
  }
  return -1;
}

TEST_F(MappedFileTest, ForgottenPagesAreNotHeldAndCanBeReadAgain) {
  const std::string text(1 << 20, 'x');
  const auto file = MappedFile::open(write("file", text));
  EXPECT_EQ(text_of(*file), text);
  const int64_t before = pages_held(file->bytes());
  EXPECT_GE(before, (1 << 20) / sysconf(_SC_PAGESIZE));
  MappedFile::forget(file->bytes().subspan(100, (1 << 20) - 200));  // the first and last page stay
  EXPECT_LE(pages_held(file->bytes()), 2);
  EXPECT_EQ(text_of(*file), text);
  MappedFile::forget(file->bytes().subspan(100, 10));  // no whole page
}

// To forget what is not in a file would lose it.
TEST_F(MappedFileTest, OnlyMappedFilesAreForgotten) {
  const std::string text(1 << 20, 'x');
  const auto file = MappedFile::open(write("file", text), MappedFile::Mode::kRead);
  MappedFile::forget(file->bytes());
  EXPECT_EQ(text_of(*file), text);
  const auto mapped = MappedFile::open(write("other", text));
  MappedFile::forget({mapped->bytes().data(), mapped->bytes().size() + (1 << 22)});  // more than the file
  EXPECT_EQ(text_of(*mapped), text);
}

TEST_F(MappedFileTest, SaysWhatIsWrong) {
  for (const auto mode : {MappedFile::Mode::kMap, MappedFile::Mode::kRead}) {
    const std::string missing = (folder_ / "none\x1b").string();
    const std::string what = message_of(missing, mode);
    EXPECT_EQ(what, "cannot open " + printable(missing, 1000) + ": No such file or directory");
    EXPECT_NE(message_of(folder_.string(), mode).find("expected a file, got a folder"), std::string::npos);
  }
}

TEST_F(MappedFileTest, TextFilesHaveALimit) {
  const std::string path = write("text", "0123456789");
  EXPECT_EQ(read_text_file(path, 10), "0123456789");
  EXPECT_EQ(read_text_file(write("empty", "")), "");
  EXPECT_THROW(read_text_file(path, 9), UserError);
}

struct Ended {
  int status;
  std::string errors;  // what it wrote to stderr
};

// Runs `body` in a child process.
template <class Body>
Ended in_child(Body body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    body();
    _exit(0);
  }
  close(ends[1]);
  Ended out{};
  char buffer[512];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    out.errors.append(buffer, static_cast<size_t>(got));
  close(ends[0]);
  waitpid(child, &out.status, 0);
  return out;
}

TEST_F(MappedFileTest, TruncationWhileInUseEndsWithOneLine) {
  const std::string path = write("model", std::string(1 << 20, 'm'));
  const Ended end = in_child([&] {
    const auto file = MappedFile::open(path);
    if (truncate(path.c_str(), 4096) != 0) _exit(7);
    volatile std::byte last = file->bytes().back();
    static_cast<void>(last);
  });
  ASSERT_TRUE(WIFEXITED(end.status)) << end.status;
  EXPECT_EQ(WEXITSTATUS(end.status), 1);
  EXPECT_EQ(end.errors, "fathom: the file was truncated or could not be read while in use: " + path + "\n");
}

TEST_F(MappedFileTest, AnotherBusErrorIsNotOurs) {
  const std::string path = write("model", std::string(1 << 20, 'm')), other = write("other", "x");
  const Ended end = in_child([&] {
    const auto ours = MappedFile::open(other);  // so that the handler is there
    const int fd = open(path.c_str(), O_RDONLY);
    const auto* data =
        static_cast<const volatile char*>(mmap(nullptr, 1 << 20, PROT_READ, MAP_SHARED, fd, 0));
    if (truncate(path.c_str(), 0) != 0) _exit(0);
    static_cast<void>(data[5000]);
  });
  // It dies as it would have: by the signal, or in the handler that was there before ours (a sanitizer's).
  EXPECT_TRUE(WIFSIGNALED(end.status) || WEXITSTATUS(end.status) != 0) << end.status;
  EXPECT_EQ(end.errors.find("fathom: "), std::string::npos) << end.errors;
}

}  // namespace
}  // namespace fathom
