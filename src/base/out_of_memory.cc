#include "base/out_of_memory.h"

#include "base/format.h"
#include "base/progress.h"

namespace fathom {

OutOfMemory::OutOfMemory(const std::string& facts)
    : UserError(facts + "; a smaller batch, context or cache needs less"), facts_(facts) {}

OutOfMemory::OutOfMemory(const std::string& device, size_t wanted, size_t free, size_t total)
    : OutOfMemory(fmt::format(
          "out of {} memory: {} wanted, {} of {} are free", device, bytes_text(static_cast<int64_t>(wanted)),
          bytes_text(static_cast<int64_t>(free)), bytes_text(static_cast<int64_t>(total)))) {}

OutOfMemory::OutOfMemory(const std::string& kind, size_t wanted)
    : OutOfMemory(
          fmt::format("out of {} memory: {} wanted", kind, bytes_text(static_cast<int64_t>(wanted)))) {}

}  // namespace fathom
