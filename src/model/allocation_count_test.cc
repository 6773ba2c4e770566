// Counts this binary's heap allocations, for the tests that a steady step makes none. In a file of its own:
// inlined into a test, gcc would warn that malloc and delete do not match.
#include <atomic>
#include <cstdlib>
#include <new>

namespace fathom {
namespace {
std::atomic<std::size_t> count{0};
}
std::size_t heap_allocations();
std::size_t heap_allocations() {
  return count;
}
void count_allocation();
void count_allocation() {
  ++count;
}
}  // namespace fathom

void* operator new(std::size_t size) {
  fathom::count_allocation();
  if (void* p = std::malloc(size ? size : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
