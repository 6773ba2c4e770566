#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "io/atomic_file.h"
#include "train/crc32c.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public testing::Test {
 protected:
  CheckpointPlace write(int64_t step, int64_t keep = 0, const std::string& text = "weights") {
    return write_checkpoint(dir(), step, keep, [&](const std::string& folder) {
      fs::create_directories(folder);
      write_file_atomically(folder + "/a.bin", text + std::to_string(step));
      write_file_atomically(folder + "/state.json", "{}");
    });
  }
  std::string dir() const { return folder_.at("run"); }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(dir())) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }
  TemporaryFolder folder_;
};

TEST_F(Checkpoints, TheNewestAndAsManyAsAreKept) {
  EXPECT_FALSE(newest_checkpoint(dir()));
  for (int64_t step : {5, 10, 15, 100}) write(step, 2);
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-100", "step-15"}));
  EXPECT_EQ(newest_checkpoint(dir())->step, 100);
  EXPECT_EQ(file_text(dir() + "/last/a.bin"), "weights100");
  EXPECT_EQ(find_checkpoint(dir()).step, 100);
  EXPECT_EQ(find_checkpoint(dir() + "/step-15").step, 15);
  EXPECT_EQ(find_checkpoint(dir() + "/step-15/").step, 15);
}

TEST_F(Checkpoints, DamagedOnesArePassedOver) {
  write(1), write(2), write(3), write(4), write(5);
  fs::remove(dir() + "/step-5/DONE");
  std::ofstream(dir() + "/step-4/a.bin", std::ios::app) << "more";
  fs::remove(dir() + "/step-3/a.bin");
  std::ofstream(dir() + "/step-2/a.bin") << "weightz2";
  EXPECT_EQ(newest_checkpoint(dir())->step, 1);
  EXPECT_EQ(error_of([&] { find_checkpoint(dir() + "/step-2"); }),
            dir() + "/step-2 is no checkpoint to go on from: a.bin is not as it was written");
  std::ofstream(dir() + "/step-1/DONE") << "{";
  EXPECT_FALSE(newest_checkpoint(dir()));
  EXPECT_NE(error_of([&] { find_checkpoint(dir()); }), "");
  // A step that is damaged is written again; one that is whole is left alone.
  write(5);
  EXPECT_EQ(newest_checkpoint(dir())->step, 5);
  write(5, 0, "others");
  EXPECT_EQ(file_text(dir() + "/step-5/a.bin"), "weights5");
}

TEST_F(Checkpoints, AFailureLeavesWhatWasThere) {
  write(1);
  EXPECT_EQ(error_of([&] {
              write_checkpoint(dir(), 2, 1, [](const std::string& folder) {
                fs::create_directories(folder);
                write_file_atomically(folder + "/a.bin", "half");
                throw UserError("disk full");
              });
            }),
            "disk full");
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-1"}));
  EXPECT_EQ(newest_checkpoint(dir())->step, 1);
  folder_.write("file", "");
  EXPECT_NE(error_of([&] {
              write_checkpoint(folder_.at("file"), 1, 1, [](const std::string&) {});
            }).find("cannot create the folder"),
            std::string::npos);
}

// A child process whose files may not grow past a few bytes: as a full disk, from the write's point of view.
TEST_F(Checkpoints, ADiskThatIsFull) {
  write(1);
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message = error_of([&] { write(2, 1, std::string(100000, 'x')); });
    _exit(message.find("cannot write") == 0 ? 7 : 8);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-1"}));
  EXPECT_EQ(newest_checkpoint(dir())->step, 1);
}

TEST_F(Checkpoints, LeftoversGo) {
  write(1);
  fs::create_directories(dir() + "/step-2.tmp-77");
  remove_leftovers(dir());
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-1"}));
}

// RFC 3720's examples.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(std::string_view("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string_view("6789"), crc32c(std::string_view("12345"))), 0xe3069283u);
}

}  // namespace
}  // namespace fathom
