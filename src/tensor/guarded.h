// The guarded device's memory: host code that touches it outside a GuardedAccess crashes, as it would with a
// GPU's memory. on_device() and the copy functions open it.
#pragma once

#include <cstddef>
#include <memory>

namespace fathom {

// 64-byte aligned, zeroed.
std::shared_ptr<void> guarded_allocate(size_t bytes);

// While one lives, the thread that made it (where the processor has no protection keys, the whole process)
// may read and write the guarded memory.
class GuardedAccess {
 public:
  GuardedAccess();
  ~GuardedAccess();
  GuardedAccess(const GuardedAccess&) = delete;
  GuardedAccess& operator=(const GuardedAccess&) = delete;
};

// Lets the calling thread read and write guarded memory until it ends. For the workers of the device's pool,
// which run only kernels.
void open_guarded_for_thread();

}  // namespace fathom
