// In a file of its own: inlined into a test, gcc would warn that malloc and delete do not match.
#include "support/heap_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::size_t> count{0}, freed{0};
}  // namespace

namespace fathom {
std::size_t heap_allocations() {
  return count;
}
std::size_t heap_blocks() {
  return count - freed;
}
}  // namespace fathom

// A sanitizer has an operator new of its own, which must not be replaced by halves: there nothing is counted.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The forms that the standard library uses; [] and the rest go through them.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(size > 0 ? size : 1);
}
void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  if (memory) ++freed;
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  operator delete(memory);
}
#endif
