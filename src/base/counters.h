// What the kernels really did. Kernels add here, from the loop bounds they ran; nothing else does.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace fathom {

struct Work {
  uint64_t madds = 0;         // multiply-adds of products: weights, attention scores and values
  uint64_t weight_bytes = 0;  // weights read, once per kernel call whatever the number of rows
  uint64_t cache_bytes = 0;   // keys and values read
  uint64_t unit_rows = 0;     // rows that an attention or FFN branch was added to
  uint64_t policy_madds = 0;  // of madds: routers, gates and other costs of deciding (PolicyWork)
};

inline Work operator-(const Work& a, const Work& b) {
  return {a.madds - b.madds, a.weight_bytes - b.weight_bytes, a.cache_bytes - b.cache_bytes,
          a.unit_rows - b.unit_rows, a.policy_madds - b.policy_madds};
}
inline Work operator+(const Work& a, const Work& b) {
  return {a.madds + b.madds, a.weight_bytes + b.weight_bytes, a.cache_bytes + b.cache_bytes,
          a.unit_rows + b.unit_rows, a.policy_madds + b.policy_madds};
}

class Counters {
 public:
  void add(const Work& work) {
    madds_.fetch_add(work.madds, std::memory_order_relaxed);
    weight_bytes_.fetch_add(work.weight_bytes, std::memory_order_relaxed);
    cache_bytes_.fetch_add(work.cache_bytes, std::memory_order_relaxed);
    unit_rows_.fetch_add(work.unit_rows, std::memory_order_relaxed);
    if (policy_) policy_madds_.fetch_add(work.madds, std::memory_order_relaxed);
  }
  // Where the device adds up work itself (what depends on numbers that only the device knows), this waits for
  // the device.
  Work total() const {
    const Work added{madds_.load(), weight_bytes_.load(), cache_bytes_.load(), unit_rows_.load(),
                     policy_madds_.load()};
    return of_device_ ? added + of_device_() : added;
  }
  // read(): what a device has added up so far, policy_madds included.
  void include(std::function<Work()> read) { of_device_ = std::move(read); }
  bool deciding() const { return policy_; }  // inside a PolicyWork

 private:
  friend class PolicyWork;
  std::function<Work()> of_device_;
  std::atomic<uint64_t> madds_{0}, weight_bytes_{0}, cache_bytes_{0}, unit_rows_{0}, policy_madds_{0};
  bool policy_ = false;
};

// Inside the scope the kernels' work counts as the cost of deciding. Budgets are shares of the blocks' work
// without it; net figures include it.
class PolicyWork {
 public:
  explicit PolicyWork(Counters& counters) : counters_(counters) { counters_.policy_ = true; }
  ~PolicyWork() { counters_.policy_ = false; }
  PolicyWork(const PolicyWork&) = delete;
  PolicyWork& operator=(const PolicyWork&) = delete;

 private:
  Counters& counters_;
};

}  // namespace fathom
