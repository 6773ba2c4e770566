#pragma once

#include <cstdint>

namespace fathom {

enum class Device : uint8_t {
  kCpu,
  kCuda,
  // For tests: the CPU's kernels over memory that only kernels and copies may touch (tensor/guarded.h). Host
  // code that a GPU would refuse fails here, too.
  kGuarded,
};

inline const char* name_of(Device device) {
  return device == Device::kCpu ? "cpu" : device == Device::kCuda ? "cuda" : "guarded";
}

}  // namespace fathom
