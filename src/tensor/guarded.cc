#include "tensor/guarded.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/format.h"
#include "base/out_of_memory.h"
#include "tensor/guarded_limit.h"

namespace fathom {
namespace {

constexpr size_t kReserved = size_t{1} << 36;  // addresses alone: pages come when they are touched
constexpr size_t kBlockAlignment = 64;
constexpr size_t kStep = size_t{1} << 20;  // how much more of the reserve is opened and closed at a time

// One reserve for the process: opening and closing it is one call, however many blocks there are.
class GuardedMemory {
 public:
  static GuardedMemory& of_process() {
    static GuardedMemory* memory = new GuardedMemory;  // it outlives every tensor
    return *memory;
  }

  void* take(size_t bytes) {
    const size_t size =
        (std::max<size_t>(bytes, 1) + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    const std::lock_guard guard(mutex_);
    const size_t left = limit_ - std::min(limit_, held_);
    const auto fits = [&](const auto& gap) { return gap.second >= size; };
    const auto found = size > left ? free_.end() : std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end()) throw OutOfMemory("guarded", bytes, left, limit_);
    const auto [begin, room] = *found;
    free_.erase(found);
    if (room > size) free_[begin + size] = room - size;
    if (begin + size > used_) grow(begin + size);
    unlock();
    std::memset(data_ + begin, 0, size);
    lock();
    sizes_[begin] = size;
    held_ += size;
    return data_ + begin;
  }

  void give_back(void* block) {
    const std::lock_guard guard(mutex_);
    const auto begin = static_cast<size_t>(static_cast<std::byte*>(block) - data_);
    const auto taken = sizes_.find(begin);
    auto gap = free_.emplace(begin, taken->second).first;
    held_ -= taken->second;
    sizes_.erase(taken);
    if (const auto next = std::next(gap); next != free_.end() && gap->first + gap->second == next->first) {
      gap->second += next->second;
      free_.erase(next);
    }
    if (gap == free_.begin()) return;
    if (const auto before = std::prev(gap); before->first + before->second == gap->first) {
      before->second += gap->second;
      free_.erase(gap);
    }
  }

  size_t held() {
    const std::lock_guard guard(mutex_);
    return held_;
  }
  void limit(size_t bytes) {
    const std::lock_guard guard(mutex_);
    limit_ = bytes;
  }

  void open() {
    if (key_ >= 0) return unlock();
    const std::lock_guard guard(mutex_);
    unlock();
  }
  void close() {
    if (key_ >= 0) return lock();
    const std::lock_guard guard(mutex_);
    lock();
  }
  void open_thread() {  // without a key it is open while any thread has opened it
    if (key_ >= 0) unlock();
  }

 private:
  GuardedMemory() {
    void* memory = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("cannot reserve addresses for the guarded device");
    data_ = static_cast<std::byte*>(memory);
    free_[0] = kReserved;
    const int key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (key >= 0 && pkey_mprotect(data_, kReserved, PROT_READ | PROT_WRITE, key) == 0) key_ = key;
  }
  void grow(size_t bytes) {
    used_ = (bytes + kStep - 1) / kStep * kStep;
    if (key_ < 0 && open_ > 0) set(PROT_READ | PROT_WRITE);
  }
  void set(int protection) {
    if (used_ > 0 && mprotect(data_, used_, protection) != 0) fail("mprotect failed on the guarded device");
  }
  // For the calling thread, where the processor has protection keys; otherwise for the process.
  void unlock() {
    if (key_ >= 0) {
      if (thread_open_++ == 0) pkey_set(key_, 0);
    } else if (open_++ == 0) {
      set(PROT_READ | PROT_WRITE);
    }
  }
  void lock() {
    if (key_ >= 0) {
      if (--thread_open_ == 0) pkey_set(key_, PKEY_DISABLE_ACCESS);
    } else if (--open_ == 0) {
      set(PROT_NONE);
    }
  }

  std::mutex mutex_;
  std::byte* data_ = nullptr;
  size_t used_ = 0;                 // of the reserve, from its beginning: what is opened and closed
  std::map<size_t, size_t> free_;   // gaps: begin, size
  std::map<size_t, size_t> sizes_;  // blocks that are out: begin, size
  size_t held_ = 0;                 // of those
  size_t limit_ = kReserved;
  int key_ = -1;  // protection key of the reserve: opening and closing it is no system call
  int open_ = 0;
  static thread_local int thread_open_;
};

thread_local int GuardedMemory::thread_open_ = 0;

}  // namespace

std::shared_ptr<void> guarded_allocate(size_t bytes) {
  return {GuardedMemory::of_process().take(bytes),
          [](void* block) { GuardedMemory::of_process().give_back(block); }};
}

size_t guarded_bytes() {
  return GuardedMemory::of_process().held();
}

GuardedLimit::GuardedLimit(size_t bytes) {
  GuardedMemory::of_process().limit(bytes);
}

GuardedLimit::~GuardedLimit() {
  GuardedMemory::of_process().limit(kReserved);
}

GuardedAccess::GuardedAccess() {
  GuardedMemory::of_process().open();
}

GuardedAccess::~GuardedAccess() {
  GuardedMemory::of_process().close();
}

void open_guarded_for_thread() {
  GuardedMemory::of_process().open_thread();
}

}  // namespace fathom
