// One thread for what takes long before an answer begins: parsing, tokenising, compiling schemas. The
// transport's threads carry bytes meanwhile.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace fathom {

// Any thread may call, but for the worker's own.
class ApiWorker {
 public:
  // Bounds what waits, beside the job that runs.
  ApiWorker(int64_t most_jobs, std::size_t most_bytes);
  ~ApiWorker();  // stops
  ApiWorker(const ApiWorker&) = delete;
  ApiWorker& operator=(const ApiWorker&) = delete;

  // Jobs run in the order in which they come. Returns false where too many wait, or too many bytes; `bytes`
  // are those that the job holds.
  bool post(std::size_t bytes, std::function<void()> job);
  int64_t unfinished() const;  // jobs that wait or run
  void wait() const;           // until there are none
  void stop();                 // drops the jobs that wait, and waits for the one that runs

 private:
  struct Job {
    std::size_t bytes;
    std::function<void()> run;
  };
  void run();
  bool take(Job& job);

  const int64_t most_jobs_;
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;  // of all below
  mutable std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::size_t bytes_ = 0;  // of jobs_
  bool running_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace fathom
