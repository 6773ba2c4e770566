// What the operating system says about memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom {

// Returns the whole pages within these bytes; empty where there is none.
std::span<const std::byte> whole_pages(std::span<const std::byte> bytes);

// What the system says could be had without swapping, in bytes; where it does not say, more than any model.
int64_t available_memory();

}  // namespace fathom
