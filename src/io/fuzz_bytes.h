// For the fuzz targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "tensor/tensor.h"

namespace fathom {

inline std::span<const std::byte> fuzz_bytes(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// Reads the first and the last byte, so that the address sanitizer sees a tensor that leaves the file.
inline void touch_ends(const Tensor& tensor) {
  if (tensor.nbytes() == 0) return;
  const auto* bytes = static_cast<const volatile unsigned char*>(tensor.raw());
  static_cast<void>(bytes[0]);
  static_cast<void>(bytes[tensor.nbytes() - 1]);
}

}  // namespace fathom
