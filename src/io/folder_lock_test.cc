#include "io/folder_lock.h"

#include <sys/wait.h>

#include <csignal>
#include <filesystem>

#include "io/test_bytes.h"

namespace fathom {
namespace {

using namespace testing_io;
namespace fs = std::filesystem;

class FolderLockTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string error_of_lock() const {
    try {
      const FolderLock lock(folder_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  std::string folder_ = temporary_path("lock");
};

TEST_F(FolderLockTest, OneHolder) {
  {
    const FolderLock lock(folder_);
    EXPECT_EQ(error_of_lock(),
              folder_ + " is in use: process " + std::to_string(getpid()) + " is writing to it");
    EXPECT_EQ(error_of_lock(),
              folder_ + " is in use: process " + std::to_string(getpid()) + " is writing to it");
  }
  EXPECT_FALSE(fs::exists(folder_)) << "it was made for nothing";
  fs::create_directories(folder_);
  EXPECT_EQ(error_of_lock(), "");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FolderLockTest, ACrashReleasesIt) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FolderLock lock(folder_);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(error_of_lock(), folder_ + " is in use: process " + std::to_string(child) + " is writing to it");
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(fs::exists(folder_ + "/.lock"));
  EXPECT_EQ(error_of_lock(), "");
  close(ready[0]), close(ready[1]);
}

TEST_F(FolderLockTest, OnlyWhatItMadeGoes) {
  {
    const FolderLock lock(folder_ + "/a/b/");
    EXPECT_TRUE(fs::exists(folder_ + "/a/b/.lock"));
  }
  EXPECT_FALSE(fs::exists(folder_));
  fs::create_directories(folder_ + "/a");
  { const FolderLock lock(folder_ + "/a/b"); }
  EXPECT_TRUE(fs::exists(folder_ + "/a"));
  {
    const FolderLock lock(folder_ + "/a/b");
    fs::create_directories(folder_ + "/a/b/c");
  }
  EXPECT_TRUE(fs::exists(folder_ + "/a/b/c"));
}

TEST_F(FolderLockTest, WhatCannotBeLocked) {
  fs::create_directories(folder_ + "/.lock");
  EXPECT_NE(error_of_lock(), "");
  EXPECT_TRUE(fs::exists(folder_ + "/.lock"));
}

}  // namespace
}  // namespace fathom
