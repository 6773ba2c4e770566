#pragma once

#include <cstddef>

namespace fathom {

// How often operator new was called in this program, by any thread: for the tests that a steady step
// allocates nothing.
std::size_t heap_allocations();

}  // namespace fathom
