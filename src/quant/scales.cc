#include "quant/scales.h"

#include <cstring>

#include "base/format.h"

namespace fathom {
namespace {

// Where a block's halves are, in bytes; second is -1 where there is one.
struct ScaleOffsets {
  int first, second;
};

ScaleOffsets offsets_of(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return {0, -1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, -1};
    case DType::kQ6_K:
      return {208, -1};
    default:
      fail("{} has no scales", name_of(dtype));
  }
}

bool is_finite_half(const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return (half & 0x7C00) != 0x7C00;
}

}  // namespace

bool scales_are_finite(DType dtype, const void* blocks, int64_t n) {
  const ScaleOffsets offsets = offsets_of(dtype);
  const int64_t step = traits(dtype).block_bytes, count = n / traits(dtype).block;
  const auto* block = static_cast<const std::byte*>(blocks);
  bool finite = true;
  for (int64_t i = 0; i < count; ++i, block += step) {
    finite &= is_finite_half(block + offsets.first);
    if (offsets.second >= 0) finite &= is_finite_half(block + offsets.second);
  }
  return finite;
}

}  // namespace fathom
