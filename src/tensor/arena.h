// Memory for one step's op outputs: a pointer that moves forward and goes back to where it stood. It grows
// while the first steps find out how much they need and then allocates no more.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/device.h"

namespace fathom {

class Context;

class Arena {
 public:
  explicit Arena(Device device) : device_(device) {}

  void* allocate(size_t bytes);  // 64-byte aligned; lives until the enclosing ArenaScope ends
  size_t capacity() const;       // bytes held from the system

 private:
  friend class ArenaScope;
  struct Chunk {
    std::shared_ptr<void> memory;
    size_t size = 0;
  };
  Device device_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0, offset_ = 0;
};

// Everything allocated inside the scope is given back at its end: one per step, and where a loop would pile
// up.
class ArenaScope {
 public:
  explicit ArenaScope(Context& ctx);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t chunk_, offset_;
};

}  // namespace fathom
