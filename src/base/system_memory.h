// Memory as the operating system deals it out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom {

// The pages that lie within these bytes as a whole; none: empty.
std::span<const std::byte> whole_pages(std::span<const std::byte> bytes);

// What the system says could be had without swapping, in bytes; where it does not say, more than any model.
int64_t available_memory();

}  // namespace fathom
