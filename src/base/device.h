#pragma once

#include <cstdint>

namespace fathom {

enum class Device : uint8_t { kCpu, kCuda };

inline const char* name_of(Device device) {
  return device == Device::kCpu ? "cpu" : "cuda";
}

}  // namespace fathom
