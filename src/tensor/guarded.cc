#include "tensor/guarded.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/format.h"

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
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(free_.begin(), free_.end(), [&](const auto& gap) { return gap.second >= size; });
    if (found == free_.end()) fail("out of guarded memory: {} bytes wanted", bytes);
    const auto [begin, room] = *found;
    free_.erase(found);
    if (room > size) free_[begin + size] = room - size;
    if (begin + size > used_) grow(begin + size);
    set(PROT_READ | PROT_WRITE);
    std::memset(data_ + begin, 0, size);
    if (open_ == 0) set(PROT_NONE);
    sizes_[begin] = size;
    return data_ + begin;
  }

  void give_back(void* block) {
    const std::lock_guard lock(mutex_);
    const auto begin = static_cast<size_t>(static_cast<std::byte*>(block) - data_);
    const auto taken = sizes_.find(begin);
    auto gap = free_.emplace(begin, taken->second).first;
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

  void open() {
    const std::lock_guard lock(mutex_);
    if (open_++ == 0) set(PROT_READ | PROT_WRITE);
  }
  void close() {
    const std::lock_guard lock(mutex_);
    if (--open_ == 0) set(PROT_NONE);
  }

 private:
  GuardedMemory() {
    void* memory = mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("cannot reserve addresses for the guarded device");
    data_ = static_cast<std::byte*>(memory);
    free_[0] = kReserved;
  }
  void grow(size_t bytes) {
    used_ = (bytes + kStep - 1) / kStep * kStep;
    if (open_ > 0) set(PROT_READ | PROT_WRITE);
  }
  void set(int protection) {
    if (used_ > 0 && mprotect(data_, used_, protection) != 0) fail("mprotect failed on the guarded device");
  }

  std::mutex mutex_;
  std::byte* data_ = nullptr;
  size_t used_ = 0;                 // of the reserve, from its beginning: what is opened and closed
  std::map<size_t, size_t> free_;   // gaps: begin, size
  std::map<size_t, size_t> sizes_;  // blocks that are out: begin, size
  int open_ = 0;
};

}  // namespace

std::shared_ptr<void> guarded_allocate(size_t bytes) {
  return {GuardedMemory::of_process().take(bytes),
          [](void* block) { GuardedMemory::of_process().give_back(block); }};
}

GuardedAccess::GuardedAccess() {
  GuardedMemory::of_process().open();
}

GuardedAccess::~GuardedAccess() {
  GuardedMemory::of_process().close();
}

}  // namespace fathom
