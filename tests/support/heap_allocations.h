#pragma once

#include <cstddef>

namespace fathom {

// How often operator new was called in this program, by any thread: for the tests that a steady step
// allocates nothing.
std::size_t heap_allocations();

// Those that were not given back yet: for the tests that nothing is left behind.
std::size_t heap_blocks();

}  // namespace fathom
