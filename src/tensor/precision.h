// How exactly products are computed.
#pragma once

#include <cstdint>

namespace fathom {

enum class Precision : uint8_t {
  kF32,
  kBf16,  // factors rounded to bf16 (to nearest even), sums in f32
};

}  // namespace fathom
