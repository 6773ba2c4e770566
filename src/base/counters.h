// What the kernels really did. Kernels add here, from the loop bounds they ran; nothing else does.
#pragma once

#include <atomic>
#include <cstdint>

namespace fathom {

struct Work {
  uint64_t madds = 0;         // multiply-adds of products: weights, attention scores and values
  uint64_t weight_bytes = 0;  // weights read, once per kernel call whatever the number of rows
  uint64_t cache_bytes = 0;   // keys and values read
};

inline Work operator-(const Work& a, const Work& b) {
  return {a.madds - b.madds, a.weight_bytes - b.weight_bytes, a.cache_bytes - b.cache_bytes};
}

class Counters {
 public:
  void add(const Work& work) {
    madds_.fetch_add(work.madds, std::memory_order_relaxed);
    weight_bytes_.fetch_add(work.weight_bytes, std::memory_order_relaxed);
    cache_bytes_.fetch_add(work.cache_bytes, std::memory_order_relaxed);
  }
  Work total() const { return {madds_.load(), weight_bytes_.load(), cache_bytes_.load()}; }

 private:
  std::atomic<uint64_t> madds_{0}, weight_bytes_{0}, cache_bytes_{0};
};

}  // namespace fathom
