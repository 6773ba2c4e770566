#include "io/atomic_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/mapped_file.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;

class AtomicFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = temporary_path("dir");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename());
    return found;
  }
  std::string folder_;
};

TEST_F(AtomicFileTest, AppearsOnlyWhenCommitted) {
  const std::string path = folder_ + "/f";
  {
    AtomicFile file(path);
    file.write("abc");
    file.write_zeros(2);
    file.write(std::string(1 << 20, 'x'));
    EXPECT_EQ(file.written(), 5u + (1 << 20));
    EXPECT_FALSE(fs::exists(path));
    file.commit();
  }
  EXPECT_EQ(read_text_file(path), std::string("abc\0\0", 5) + std::string(1 << 20, 'x'));
  EXPECT_EQ(names(), std::vector<std::string>{"f"});
}

TEST_F(AtomicFileTest, ReplacesAsAWhole) {
  write_file_atomically(folder_ + "/f", "old");
  {
    AtomicFile file(folder_ + "/f");
    file.write("new");
    EXPECT_EQ(read_text_file(folder_ + "/f"), "old");
    file.commit();
  }
  EXPECT_EQ(read_text_file(folder_ + "/f"), "new");
}

TEST_F(AtomicFileTest, LeavesNothingWhenNotCommitted) {
  write_file_atomically(folder_ + "/f", "old");
  { AtomicFile(folder_ + "/f").write(std::string(1 << 20, 'x')); }
  EXPECT_EQ(read_text_file(folder_ + "/f"), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"f"});
}

TEST_F(AtomicFileTest, TwoWritersDoNotMix) {
  AtomicFile first(folder_ + "/f"), second(folder_ + "/f");
  first.write("first");
  second.write("second");
  first.commit();
  EXPECT_EQ(read_text_file(folder_ + "/f"), "first");
  second.commit();
  EXPECT_EQ(read_text_file(folder_ + "/f"), "second");
  EXPECT_EQ(names(), std::vector<std::string>{"f"});
}

TEST_F(AtomicFileTest, APathThatCannotBeWrittenIsNamed) {
  write_file_atomically(folder_ + "/plain", "x");
  for (const std::string& path : {folder_ + "/plain/f", folder_ + "/no/such/f"}) {
    const std::string message = error_of([&] { AtomicFile file(path); });
    EXPECT_TRUE(message.starts_with("cannot write " + path + ": ")) << message;
  }
  EXPECT_NE(error_of([&] { AtomicFile file(folder_); }).find("it is a folder or device"), std::string::npos);
  EXPECT_NE(error_of([&] { AtomicFile file("/dev/null"); }).find("it is a folder or device"),
            std::string::npos);
  EXPECT_NE(error_of([&] { AtomicFile file(""); }).find("without a name"), std::string::npos);
}

// Writes past this many bytes fail as they do on a full disk: the kernel takes what fits, then says no.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(AtomicFileTest, AFullDiskIsAnErrorAndLeavesNothing) {
  const std::string path = folder_ + "/f";
  write_file_atomically(path, "old");
  const Tensor tensor = counting_tensor({1 << 16});
  std::vector<std::string> messages;
  {
    const FileSizeLimit limit(100'000);
    messages.push_back(error_of([&] { write_file_atomically(path, std::string(200'000, 'x')); }));
    messages.push_back(error_of([&] { write_gguf(path, {}, {{"w", tensor}}); }));
    messages.push_back(error_of([&] { write_safetensors(path, {{"w", tensor}}); }));
  }
  for (const std::string& message : messages)
    EXPECT_TRUE(message.starts_with("cannot write " + path + ": ")) << message;
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"f"});
}

TEST_F(AtomicFileTest, FollowsTheUmask) {
  const mode_t before = ::umask(027);
  write_file_atomically(folder_ + "/f", "x");
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ + "/f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

}  // namespace
}  // namespace fathom
