#include "infer/engine.h"

#include <system_error>

#include "base/format.h"
#include "base/thread_name.h"
#include "infer/model_runtime.h"

namespace fathom {

EngineThread::EngineThread(Feeder& feeder, BatcherOptions options)
    : most_(feeder.cache().sequences() + options.waiting),
      batcher_(feeder, std::move(options)),
      stats_(batcher_.stats()) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail("the engine's thread cannot be started: {}", error.code().message());
  }
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = stopping_ = true;
  }
  batcher_.doorbell().ring();
  thread_.join();
}

std::vector<Answer> EngineThread::submit(Request request) {
  std::vector<std::unique_ptr<Lane>> lanes = batcher_.prepare(std::move(request));
  std::vector<Answer> answers;
  for (const auto& lane : lanes) answers.emplace_back(lane->out);
  {
    const std::lock_guard lock(mutex_);
    if (draining_) throw EngineBusy("the engine is shutting down");
    const int64_t here = stats_.running + stats_.waiting + static_cast<int64_t>(inbox_.size());
    if (here + static_cast<int64_t>(lanes.size()) > most_)
      throw EngineBusy(fmt::format("there are {} answers, and room for {}: try again later", here, most_));
    for (auto& lane : lanes) inbox_.push_back(std::move(lane));
  }
  batcher_.doorbell().ring();
  return answers;
}

void EngineThread::drain() {
  std::unique_lock lock(mutex_);
  draining_ = true;
  idle_.wait(lock, [&] { return inbox_.empty() && !working_; });
}

EngineStats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting += static_cast<int64_t>(inbox_.size());
  return stats;
}

// -> false: it is time to go.
bool EngineThread::take_requests() {
  const std::lock_guard lock(mutex_);
  for (auto& lane : inbox_) batcher_.add(std::move(lane));
  stats_.waiting += static_cast<int64_t>(inbox_.size());
  inbox_.clear();
  working_ = !batcher_.idle();
  return !stopping_;
}

void EngineThread::publish() {
  {
    const std::lock_guard lock(mutex_);
    stats_ = batcher_.stats();
    working_ = !batcher_.idle();
  }
  idle_.notify_all();
}

void EngineThread::run() {
  name_thread("fathom-engine");
  while (take_requests()) {
    bool worked = false;
    try {
      worked = batcher_.step();
    } catch (const std::exception&
                 error) {  // out of memory between two passes: the fault of no request in particular
      batcher_.end_all(FinishReason::kError, error.what());
    }
    publish();
    if (!worked) batcher_.doorbell().wait(batcher_.next_deadline());
  }
  batcher_.end_all(FinishReason::kCancelled);
  publish();
}

Engine::Engine(Feeder& feeder, BatcherOptions options)
    : thread_(std::make_unique<EngineThread>(feeder, std::move(options))) {}

Engine::Engine(const Runtime& runtime, const EngineOptions& options) {
  runtime.runtime_->take();
  runtime_ = runtime.runtime_;
  BatcherOptions all = runtime_->engine_options();
  static_cast<EngineOptions&>(all) = options;
  thread_ = std::make_unique<EngineThread>(runtime_->feeder(), std::move(all));
}

Engine::~Engine() {
  thread_.reset();
  if (runtime_) runtime_->give_back();
}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&& other) noexcept {
  std::swap(thread_, other.thread_);
  std::swap(runtime_, other.runtime_);
  return *this;
}

std::vector<Answer> Engine::submit(Request request) {
  return thread_->submit(std::move(request));
}
void Engine::drain() {
  thread_->drain();
}
EngineStats Engine::stats() const {
  return thread_->stats();
}

}  // namespace fathom
