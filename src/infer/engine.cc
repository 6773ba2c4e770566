#include "infer/engine.h"

#include <system_error>

#include "base/format.h"
#include "base/thread_name.h"
#include "infer/model_runtime.h"

namespace fathom {
namespace {

// An answer that cannot be added ends alone.
void add_to(Batcher& batcher, std::unique_ptr<Lane> lane) {
  const std::shared_ptr<TokenQueue> out = lane->out;
  try {
    batcher.add(std::move(lane));
  } catch (const std::exception& error) {
    out->close({.reason = FinishReason::kError, .text = "", .error = error.what(), .stats = {}});
  }
}

}  // namespace

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
  for (const auto& lane : lanes) answers.push_back(make_answer(lane->out));
  {
    const std::lock_guard lock(mutex_);
    if (draining_) throw EngineBusy("the engine is shutting down");
    const int64_t here = *open_;
    if (here + static_cast<int64_t>(lanes.size()) > most_)
      throw EngineBusy(fmt::format("there are {} answers, and room for {}: try again later", here, most_));
    inbox_.reserve(inbox_.size() + lanes.size());
    for (auto& lane : lanes) {
      lane->out->count_in(open_);
      inbox_.push_back(std::move(lane));
    }
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

// Returns false when the thread is to end.
bool EngineThread::take_requests() {
  std::vector<std::unique_ptr<Lane>> came;
  bool goes_on = true;
  {
    const std::lock_guard lock(mutex_);
    came.swap(inbox_);
    stats_.waiting += static_cast<int64_t>(came.size());
    working_ = !came.empty() || !batcher_.idle();
    goes_on = !stopping_;
  }
  for (auto& lane : came) add_to(batcher_, std::move(lane));
  return goes_on;
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
  for (bool goes_on = true; goes_on;) {
    bool worked = false;
    try {
      goes_on = take_requests();
      worked = !goes_on || batcher_.step();
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

Engine make_engine(Feeder& feeder, BatcherOptions options) {
  return Engine(std::make_unique<EngineThread>(feeder, std::move(options)));
}

Engine::Engine(std::unique_ptr<EngineThread> thread) : thread_(std::move(thread)) {}

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
