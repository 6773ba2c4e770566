#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

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

// A device as users name it.
struct DeviceName {
  Device device = Device::kCpu;
  int index = 0;  // which of several GPUs
};
inline constexpr unsigned int kMostDevices = 1024;
inline constexpr const char* kDeviceNames = "cpu, cuda or cuda:N";  // for messages

// "cpu", "cuda" (the first GPU) or "cuda:N"; none: another name.
std::optional<DeviceName> parse_device(std::string_view name);

}  // namespace fathom
