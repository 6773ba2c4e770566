// A fixed team of threads that run one function together. Work is split statically, so which thread does what
// never depends on timing. Waiting spins until nothing has moved for 50 µs (the next op of a forward pass
// comes sooner) and then parks, so more threads than cores cost time slices, not a livelock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace fathom {

// A non-owning reference to a callable: no allocation, unlike std::function.
template <class Signature>
class FunctionRef;
template <class... Args>
class FunctionRef<void(Args...)> {
 public:
  template <class Fn>
  requires(!std::is_same_v<std::remove_cvref_t<Fn>, FunctionRef>)
      FunctionRef(Fn&& fn)  // NOLINT(google-explicit-constructor): a parameter type, meant to convert
      : object_(const_cast<void*>(static_cast<const void*>(&fn))), call_([](void* object, Args... args) {
          (*static_cast<std::remove_reference_t<Fn>*>(object))(args...);
        }) {}
  void operator()(Args... args) const { call_(object_, args...); }

 private:
  void* object_;
  void (*call_)(void*, Args...);
};

struct Range {
  int64_t begin = 0, end = 0;
};

// The part of [0, n) that thread `index` of `count` does; edges at multiples of `grain`.
Range split_evenly(int64_t n, int index, int count, int64_t grain = 1);

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // with the calling one; fewer, and a warning, where the system refuses
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs body(thread) once on every thread and returns when all are done. An exception thrown by any of them
  // (thread 0's first) is rethrown here. Not to be nested, nor called by two threads at once.
  void run(FunctionRef<void(int)> body);

  // Inside run(): waits until every thread has arrived.
  void barrier();

  // body(begin, end) over a static partition of [0, n) at multiples of `grain`; in the calling thread alone
  // when all of it fits one grain.
  void parallel_for(int64_t n, int64_t grain, FunctionRef<void(int64_t, int64_t)> body);

 private:
  void work(int thread);
  void call(int thread);

  std::vector<std::thread> workers_;
  const FunctionRef<void(int)>* body_ = nullptr;
  std::atomic<uint32_t> generation_{0};  // a new job, or stop
  std::atomic<uint32_t> running_{0};     // workers still inside the job
  std::atomic<uint32_t> arrived_{0};     // of the barrier
  std::atomic<uint32_t> barrier_phase_{0};
  std::atomic<bool> failed_{false};
  std::vector<std::exception_ptr> errors_;
  bool stop_ = false;
};

// Returns how many threads to use when the caller does not say: the cores this process may run on.
int default_threads();

}  // namespace fathom
