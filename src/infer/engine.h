// The thread that steps a batcher: what an Engine is a handle of.
#pragma once

#include <atomic>
#include <thread>

#include "infer/batcher.h"

namespace fathom {

class EngineThread {
 public:
  EngineThread(Feeder& feeder, BatcherOptions options);
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  std::vector<Answer> submit(Request request);
  void drain();
  EngineStats stats() const;

 private:
  void run();
  bool take_requests();
  void publish();

  const int64_t most_;  // answers at a time
  Batcher batcher_;     // the thread's, but for prepare()
  mutable std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<std::unique_ptr<Lane>> inbox_;
  // Answers not yet ended; raised under mutex_. An answer leaves the count before its reader sees the end, so
  // its place is free then. stats_ shows the end after the step.
  const std::shared_ptr<std::atomic<int64_t>> open_ = std::make_shared<std::atomic<int64_t>>(0);
  EngineStats stats_;
  bool draining_ = false, stopping_ = false, working_ = false;
  std::thread thread_;
};

// Returns an engine over a feeder of the caller's. The feeder must outlive the engine; use it for nothing
// else until then.
Engine make_engine(Feeder& feeder, BatcherOptions options);

}  // namespace fathom
