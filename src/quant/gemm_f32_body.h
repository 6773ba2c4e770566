// f32 panels for every instruction set: for each element of k, the lines side by side. Internal linkage:
// files built with ISA flags include this.
#pragma once

#include "quant/gemm_kernels.h"

namespace fathom {
namespace {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

struct AsItIs {
  using Element = float;
  static float load(float value) { return value; }
};
struct Rounded {
  using Element = float;
  static float load(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return float_of((bits | 0x400000) & 0xffff0000);
    return float_of((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
  }
};
struct Widened {
  using Element = uint16_t;
  static float load(uint16_t value) { return float_of(static_cast<uint32_t>(value) << 16); }
};

template <int kLines, class Type>
void pack_typed(const GemmFactor& factor, int64_t lines, int64_t k, float* panel) {
  const auto* from = static_cast<const typename Type::Element*>(factor.data);
  if (lines == kLines && factor.line_step == 1) {
    for (int64_t i = 0; i < k; ++i) {
      for (int line = 0; line < kLines; ++line)
        panel[i * kLines + line] = Type::load(from[i * factor.k_step + line]);
    }
    return;
  }
  // Lines that are dense along k, a few elements at a time: what is written stays in the cache for the next
  // line.
  constexpr int64_t kFew = 16;
  for (int64_t first = 0; first < k; first += kFew) {
    const int64_t last = first + kFew < k ? first + kFew : k;
    for (int64_t line = 0; line < kLines; ++line) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = line * factor.line_step + i * factor.k_step;
        panel[i * kLines + line] = line < lines ? Type::load(from[at]) : 0.0f;
      }
    }
  }
}

template <int kLines>
void pack(const GemmFactor& factor, int64_t lines, int64_t k, void* to) {
  auto* panel = static_cast<float*>(to);
  if (factor.bf16) return pack_typed<kLines, Widened>(factor, lines, k, panel);
  if (factor.round) return pack_typed<kLines, Rounded>(factor, lines, k, panel);
  pack_typed<kLines, AsItIs>(factor, lines, k, panel);
}

// A whole tile's sums (rows of kColumns), already times alpha, into what there is of it.
template <int kColumns>
inline void store_part(const float* whole, const GemmTile& tile) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t c = 0; c < tile.columns; ++c) {
      float& to = tile.c[r * tile.stride + c];
      const float sum = whole[r * kColumns + c];
      to = tile.beta != 0.0f ? __builtin_fmaf(tile.beta, to, sum) : sum;
    }
  }
}

}  // namespace
}  // namespace fathom
