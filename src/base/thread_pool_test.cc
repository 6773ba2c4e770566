#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace fathom {
namespace {

TEST(SplitEvenly, CoversAllOnceAtMultiplesOfTheGrain) {
  for (const int64_t n : {0, 1, 5, 64, 100, 1001}) {
    for (const int count : {1, 2, 3, 8}) {
      for (const int64_t grain : {1, 4, 64}) {
        int64_t next = 0;
        for (int i = 0; i < count; ++i) {
          const Range part = split_evenly(n, i, count, grain);
          EXPECT_EQ(part.begin, next);
          EXPECT_TRUE(part.end == n || part.end % grain == 0) << part.end;
          EXPECT_LE(part.end - part.begin, (n + count - 1) / count + grain);
          next = part.end;
        }
        EXPECT_EQ(next, n);
      }
    }
  }
}

TEST(ThreadPool, EveryThreadRunsOnce) {
  for (const int threads : {1, 2, 3, 16}) {  // 16: more than the cores
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    std::vector<int> runs(static_cast<size_t>(threads));
    for (int i = 0; i < 200; ++i) pool.run([&](int thread) { ++runs[static_cast<size_t>(thread)]; });
    for (const int count : runs) EXPECT_EQ(count, 200);
  }
}

TEST(ThreadPool, WorkersHaveAName) {
  ThreadPool pool(2);
  char name[16] = "";
  pool.run([&](int thread) {
    if (thread == 1) pthread_getname_np(pthread_self(), name, sizeof name);
  });
  EXPECT_STREQ(name, "fathom-pool");
}

TEST(ThreadPool, ZeroThreadsIsOne) {
  ThreadPool pool(0);
  EXPECT_EQ(pool.threads(), 1);
  bool ran = false;
  pool.run([&](int thread) { ran = thread == 0; });
  EXPECT_TRUE(ran);
}

TEST(ThreadPool, ParallelForCoversAllOnce) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 2, 63, 64, 65, 1000}) {
      for (const int64_t grain : {1, 10, 64, 5000}) {
        std::vector<int> seen(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const int count : seen) ASSERT_EQ(count, 1);
      }
    }
  }
}

TEST(ThreadPool, OneGrainStaysInTheCallingThread) {
  ThreadPool pool(3);
  std::thread::id where;
  int calls = 0;
  pool.parallel_for(10, 10, [&](int64_t, int64_t) {
    where = std::this_thread::get_id();
    ++calls;
  });
  EXPECT_EQ(where, std::this_thread::get_id());
  EXPECT_EQ(calls, 1);
}

// Without the barrier a fast thread would read what a slow one has not written.
TEST(ThreadPool, BarrierSeparatesPhases) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<int> written(static_cast<size_t>(threads)), sums(static_cast<size_t>(threads));
    pool.run([&](int thread) {
      for (int phase = 1; phase <= 300; ++phase) {
        written[static_cast<size_t>(thread)] = phase;
        pool.barrier();
        const int sum = std::accumulate(written.begin(), written.end(), 0);
        if (sum == phase * threads) ++sums[static_cast<size_t>(thread)];
        pool.barrier();
      }
    });
    for (const int sum : sums) EXPECT_EQ(sum, 300);
  }
}

TEST(ThreadPool, RethrowsTheFirstThreadsException) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    try {
      pool.run([](int thread) {
        if (thread > 0) throw std::runtime_error("thread " + std::to_string(thread));
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "thread 1");
    }
    int ran = 0;
    pool.run([&](int thread) {  // the pool is as good as new
      if (thread == 0) ++ran;
    });
    EXPECT_EQ(ran, 1);
  }
  try {
    pool.run([](int thread) {
      if (thread == 2) throw std::runtime_error("another");
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "another");  // not thread 1's of before
  }
  EXPECT_THROW(pool.run([](int thread) {
    if (thread == 0) throw std::logic_error("caller");
  }),
               std::logic_error);
  EXPECT_THROW(pool.parallel_for(100, 1, [](int64_t, int64_t) { throw std::runtime_error("in a part"); }),
               std::runtime_error);
}

TEST(ThreadPool, WakesAfterParking) {
  ThreadPool pool(2);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the spin
    int sum = 0;
    std::atomic<int> others{0};
    pool.run([&](int thread) { thread == 0 ? static_cast<void>(sum = 1) : static_cast<void>(others = 1); });
    EXPECT_EQ(sum + others, 2);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need more room themselves
// Room for the stacks of a few threads only, in a child process: the others are done without.
TEST(ThreadPool, FewerThreadsWhereTheSystemGivesFewer) {
  const pid_t child = fork();
  if (child == 0) {
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto bytes = static_cast<rlim_t>(pages * getpagesize() + (48 << 20));
    const rlimit limit{bytes, bytes};
    rlimit held{};
    if (setrlimit(RLIMIT_AS, &limit) != 0 || getrlimit(RLIMIT_AS, &held) != 0 || held.rlim_cur != bytes) {
      _exit(9);  // an emulator does not pass the limit on
    }
    std::atomic<int> ran{0};
    ThreadPool pool(200);
    pool.run([&](int) { ++ran; });
    _exit(pool.threads() < 200 && pool.threads() >= 1 && ran == pool.threads() ? 7 : 8);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << WTERMSIG(status);
  if (WEXITSTATUS(status) == 9) GTEST_SKIP() << "the address space cannot be limited here";
  EXPECT_EQ(WEXITSTATUS(status), 7);
}
#endif

TEST(ThreadPool, DefaultIsWhatTheProcessMayUse) {
  EXPECT_GE(default_threads(), 1);
}

}  // namespace
}  // namespace fathom
