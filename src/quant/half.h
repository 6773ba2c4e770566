// f16 and bf16 bits <-> f32. Rounds to nearest, ties to even; NaN stays NaN (quiet), overflow becomes
// infinity.
#pragma once

#include <bit>
#include <cstdint>

namespace fathom {

inline float f32_of_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = static_cast<uint32_t>(half & 0x7fff) << 13;
  if (rest >= 0x7c00u << 13) return std::bit_cast<float>(sign | 0x7f800000u | rest);  // infinity, NaN
  // The exponent's bias differs by 112; multiplying by 2^112 also normalises subnormals, and is exact.
  const float value = std::bit_cast<float>(rest) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
}

inline uint16_t f16_of_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (rest >> 13 & 0x1ff));
  if (rest >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above round to infinity
  if (rest < 0x38800000) {
    // Subnormal: adding 0.5 puts the last bit of the result at 2^-24, so the addition does the rounding.
    const float rounded = std::bit_cast<float>(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3f000000));
  }
  const uint32_t rounded = rest + 0xfff + (rest >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - (112u << 23)) >> 13);
}

inline float f32_of_bf16(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

inline uint16_t bf16_of_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace fathom
