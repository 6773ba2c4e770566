#include "train/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "io/atomic_file.h"
#include "train/checkpoint_folder.h"
#include "train/crc32c.h"
#include "train/temporary_folder_test.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public testing::Test {
 protected:
  CheckpointPlace write(int64_t step, const KeptCheckpoints& kept = {}, const std::string& text = "weights") {
    return write_checkpoint(dir(), step, kept, [&](const std::string& folder) {
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
  for (int64_t step : {5, 10, 15, 100}) write(step, {2});
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
  write(5, {}, "others");
  EXPECT_EQ(file_text(dir() + "/step-5/a.bin"), "weights5");
}

TEST_F(Checkpoints, AFailureLeavesWhatWasThere) {
  write(1);
  EXPECT_EQ(error_of([&] {
              write_checkpoint(dir(), 2, {1}, [](const std::string& folder) {
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
              write_checkpoint(folder_.at("file"), 1, {1}, [](const std::string&) {});
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
    const std::string message = error_of([&] { write(2, {1}, std::string(100000, 'x')); });
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
  for (const char* name : {"step-2.tmp-77", "step-3.tmp-77-1"}) {
    fs::create_directories(dir() + "/" + name + "/files");
    write_mark(dir() + "/" + name);
  }
  fs::create_symlink("step-1", dir() + "/last.tmp-77");
  remove_leftovers(dir());
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-1"}));
}

// The run went back before a damaged one: what it writes then stays.
TEST_F(Checkpoints, DamagedOnesAreNotCountedAsKept) {
  write(7), write(9);
  std::ofstream(dir() + "/step-9/a.bin") << "weightz9";
  write(8, {1});
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-8", "step-9"}));
  EXPECT_EQ(newest_checkpoint(dir())->step, 8);
  EXPECT_EQ(file_text(dir() + "/last/a.bin"), "weights8");
  // One that is damaged and older goes with its time.
  write(10, {1});
  EXPECT_EQ(names(), (std::vector<std::string>{"last", "step-10"}));
}

TEST_F(Checkpoints, TheBestStays) {
  for (int64_t step : {5, 6, 7}) write(step, {1, 5});
  EXPECT_EQ(names(), (std::vector<std::string>{"best", "last", "step-5", "step-7"}));
  EXPECT_EQ(file_text(dir() + "/best/a.bin"), "weights5");
  write(8, {1, 8});
  EXPECT_EQ(names(), (std::vector<std::string>{"best", "last", "step-8"}));
}

TEST_F(Checkpoints, WhatIsNotOursStays) {
  fs::create_directories(dir() + "/step-3");
  fs::create_directories(dir() + "/step-9.tmp-mine");
  folder_.write("run/step-3/thesis.txt", "years");
  folder_.write("run/step-9.tmp-mine/notes.txt", "days");
  remove_leftovers(dir());
  EXPECT_EQ(error_of([&] { check_run_folder(dir(), 0); }),
            dir() + "/step-3 is in the way: it is no checkpoint of ours; move it, or use another folder");
  EXPECT_EQ(error_of([&] { check_run_folder(dir(), 3); }), "");
  EXPECT_NE(error_of([&] { write(3); }), "");
  for (int64_t step : {4, 5, 6}) write(step, {1});
  EXPECT_EQ(file_text(dir() + "/step-3/thesis.txt"), "years");
  EXPECT_EQ(file_text(dir() + "/step-9.tmp-mine/notes.txt"), "days");
  // Nor is a checkpoint with a file of another's in it removed.
  folder_.write("run/step-6/notes.txt", "mine");
  write(7, {1}), write(8, {1});
  EXPECT_EQ(file_text(dir() + "/step-6/notes.txt"), "mine");
  std::ofstream(dir() + "/step-6/a.bin") << "damaged";
  EXPECT_EQ(error_of([&] { check_run_folder(dir(), 5); }),
            dir() +
                "/step-6 is in the way: it holds notes.txt, which is no part of the checkpoint; move it, "
                "or use another folder");
}

TEST_F(Checkpoints, ALinkOfAnothersIsNotReplaced) {
  fs::create_directories(dir());
  folder_.write("run/last", "mine");
  EXPECT_NE(error_of([&] { check_run_folder(dir(), 0); }).find("last is in the way"), std::string::npos);
  EXPECT_NE(error_of([&] { write(1); }), "");
  EXPECT_EQ(file_text(dir() + "/last"), "mine");
}

TEST_F(Checkpoints, ADoneThatIsNone) {
  write(1);
  const std::string good = file_text(dir() + "/step-1/DONE");
  std::string other_sum = good, other_step = good;
  other_step.replace(other_step.find("\"step\": 1"), 9, "\"step\": 2");
  other_sum.replace(other_sum.find("\"a.bin\""), 7, "\"b.bin\"");
  for (const std::string& text : {std::string(R"({"files": {}})"), std::string(R"({"step": 1, "files": {}})"),
                                  std::string(R"({"step": null, "files": {"state.json": 1}})"), other_step,
                                  other_sum, std::string(300000, '[')}) {
    std::ofstream(dir() + "/step-1/DONE") << text;
    EXPECT_FALSE(newest_checkpoint(dir())) << text;
  }
  std::ofstream(dir() + "/step-1/DONE") << good;
  EXPECT_TRUE(newest_checkpoint(dir()));
}

// Killed at any moment, the folder holds whole checkpoints and what carries our mark.
TEST_F(Checkpoints, AKillLeavesNothingForEver) {
  fs::create_directories(dir());
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (int64_t step = 1;; ++step) write(step % 50 + 1, {1});
    }
    usleep(static_cast<useconds_t>(3000 + 1700 * round));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    remove_leftovers(dir());
    for (const std::string& name : names()) {
      if (name == "last") continue;
      EXPECT_EQ(error_of([&] { find_checkpoint(dir() + "/" + name); }), "") << name;
    }
  }
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
