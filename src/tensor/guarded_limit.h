// How much memory the guarded device has: for tests of what becomes of work that needs more.
#pragma once

#include <cstddef>

namespace fathom {

// Returns the bytes of all blocks that are handed out.
size_t guarded_bytes();

// While one lives, what would pass this many bytes is out of memory, as on a GPU.
class GuardedLimit {
 public:
  explicit GuardedLimit(size_t bytes);
  ~GuardedLimit();
  GuardedLimit(const GuardedLimit&) = delete;
  GuardedLimit& operator=(const GuardedLimit&) = delete;
};

}  // namespace fathom
