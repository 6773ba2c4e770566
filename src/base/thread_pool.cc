#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/format.h"
#include "base/log.h"
#include "base/thread_name.h"

namespace fathom {
namespace {

void relax() {
#if defined(__aarch64__)
  asm volatile("yield");
#elif defined(__x86_64__)
  asm volatile("pause");
#endif
}

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);

// Waits until `value` differs from `old`: spins until nothing has moved for kSpin, then parks. `progress`
// counts what the others do meanwhile. Waking many parked threads takes longer than kSpin; if those that are
// done with a job parked while the last ones still wake up, every job would begin by waking them all again.
void wait_while(std::atomic<uint32_t>& value, uint32_t old, const std::atomic<uint32_t>& progress) {
  uint32_t seen = progress.load(std::memory_order_relaxed);
  auto moved = Clock::now();
  for (auto now = moved; now < moved + kSpin; now = Clock::now()) {
    for (int i = 0; i < 64; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
    if (const uint32_t current = progress.load(std::memory_order_relaxed); current != seen) {
      seen = current;
      moved = now;
    }
  }
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

Range split_evenly(int64_t n, int index, int count, int64_t grain) {
  const int64_t pieces = (n + grain - 1) / grain;
  return {std::min(n, pieces * index / count * grain), std::min(n, pieces * (index + 1) / count * grain)};
}

ThreadPool::ThreadPool(int threads) : errors_(static_cast<size_t>(std::max(1, threads))) {
  workers_.reserve(errors_.size());
  for (int i = 1; i < threads; ++i) {
    try {
      workers_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error& error) {  // a limit on processes, or no memory for a stack
      log_warn(fmt::format("only {} of {} threads could be started: {}", i, threads, error.code().message()));
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::call(int thread) {
  try {
    (*body_)(thread);
  } catch (...) {
    errors_[static_cast<size_t>(thread)] = std::current_exception();
    failed_.store(true, std::memory_order_relaxed);
  }
}

void ThreadPool::work(int thread) {
  name_thread("fathom-pool");
  uint32_t seen = 0;
  while (true) {
    wait_while(generation_, seen, running_);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    call(thread);
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::run(FunctionRef<void(int)> body) {
  body_ = &body;
  if (!workers_.empty()) {
    running_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }
  call(0);
  for (uint32_t left = running_.load(std::memory_order_acquire); left != 0;
       left = running_.load(std::memory_order_acquire)) {
    wait_while(running_, left, running_);
  }
  body_ = nullptr;
  if (!failed_.load(std::memory_order_relaxed)) return;
  failed_.store(false, std::memory_order_relaxed);
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    if (error && !first) first = error;
    error = nullptr;
  }
  std::rethrow_exception(first);
}

void ThreadPool::barrier() {
  if (workers_.empty()) return;
  const uint32_t phase = barrier_phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == workers_.size()) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_phase_.fetch_add(1, std::memory_order_release);
    barrier_phase_.notify_all();
  } else {
    wait_while(barrier_phase_, phase, arrived_);
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (n <= 0) return;
  if (n <= grain || workers_.empty()) return body(0, n);
  run([&](int thread) {
    const Range part = split_evenly(n, thread, threads(), grain);
    if (part.begin < part.end) body(part.begin, part.end);
  });
}

int default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace fathom
