#include "base/device.h"

#include <charconv>

namespace fathom {

std::optional<DeviceName> parse_device(std::string_view name) {
  if (name == "cpu") return DeviceName{Device::kCpu, 0};
  if (name == "cuda") return DeviceName{Device::kCuda, 0};
  constexpr std::string_view kNumbered = "cuda:";
  if (name.substr(0, kNumbered.size()) != kNumbered) return std::nullopt;
  const std::string_view number = name.substr(kNumbered.size());
  unsigned int index = 0;
  const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (error != std::errc() || stop != number.data() + number.size() || index >= kMostDevices)
    return std::nullopt;
  return DeviceName{Device::kCuda, static_cast<int>(index)};
}

}  // namespace fathom
