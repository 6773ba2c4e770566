#include "serve/api_worker.h"

#include <string>
#include <system_error>

#include "base/format.h"
#include "base/log.h"
#include "base/thread_name.h"

namespace fathom {

ApiWorker::ApiWorker(int64_t most_jobs, std::size_t most_bytes)
    : most_jobs_(most_jobs), most_bytes_(most_bytes) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail("the API's thread cannot be started: {}", error.code().message());
  }
}

ApiWorker::~ApiWorker() {
  stop();
}

void ApiWorker::stop() {
  std::deque<Job> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(jobs_);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool ApiWorker::post(std::size_t bytes, std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  const bool full = !jobs_.empty() && bytes_ + bytes > most_bytes_;
  if (stopping_ || full || std::ssize(jobs_) >= most_jobs_) return false;
  jobs_.push_back({bytes, std::move(job)});
  bytes_ += bytes;
  changed_.notify_all();
  return true;
}

int64_t ApiWorker::unfinished() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(jobs_) + (running_ ? 1 : 0);
}

void ApiWorker::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty() && !running_; });
}

// Waits for the next job. Returns false when it is time to go.
bool ApiWorker::take(Job& job) {
  std::unique_lock lock(mutex_);
  running_ = false;
  changed_.notify_all();
  changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
  if (stopping_) return false;
  job = std::move(jobs_.front());
  jobs_.pop_front();
  bytes_ -= job.bytes;
  running_ = true;
  return true;
}

// What a job holds goes before the job counts as finished.
void ApiWorker::run() {
  name_thread("fathom-api");
  for (Job job; take(job); job = {}) {
    try {
      job.run();
    } catch (const std::exception& error) {
      log_warn(std::string("a request failed: ") + error.what());
    }
  }
}

}  // namespace fathom
