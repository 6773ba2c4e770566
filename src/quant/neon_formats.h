// How NEON reads each block format, for the files built with instruction-set flags: everything has internal
// linkage. A format F reads 32 elements of a block (`sub`: which 32) as stored, that is plus kOffset, and the
// scales and minima of the same block of four weight rows, lane = row.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace fathom {
namespace {  // NOLINT(google-build-namespaces): see above

struct Int8x32 {
  int8x16_t low, high;
};

inline uint32_t load_u32(const uint8_t* bytes) {
  uint32_t value;
  __builtin_memcpy(&value, bytes, 4);
  return value;
}

// Sums start at the bits of 1.5 * 2^23 instead of 0: seen as a float, such a sum is 1.5 * 2^23 + the integer
// (exactly, up to 2^22; ours stay below 2^20), and a subtraction makes it a float. It takes a quarter of the
// time of a conversion.
constexpr int32_t kMagicBits = 0x4b400000;

inline float32x4_t float_of_magic(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(12582912.0f));
}

// Four f16 values, `offset` bytes into four blocks.
inline float32x4_t load_halves(const uint8_t* const* blocks, int offset) {
  uint16_t halves[4];
  for (int c = 0; c < 4; ++c) __builtin_memcpy(&halves[c], blocks[c] + offset, 2);
  // Gathered in a general register: four loads into lanes take as many slots of the vector units as the dot
  // products.
  const uint64_t packed =
      halves[0] | uint64_t{halves[1]} << 16 | uint64_t{halves[2]} << 32 | uint64_t{halves[3]} << 48;
  return vcvt_f32_f16(vreinterpret_f16_u64(vcreate_u64(packed)));
}

inline uint32x4_t load_words(const uint8_t* const* blocks, int offset) {
  uint32x4_t words = vdupq_n_u32(load_u32(blocks[0] + offset));
  words = vsetq_lane_u32(load_u32(blocks[1] + offset), words, 1);
  words = vsetq_lane_u32(load_u32(blocks[2] + offset), words, 2);
  return vsetq_lane_u32(load_u32(blocks[3] + offset), words, 3);
}

inline Int8x32 nibbles(const uint8_t* bytes) {
  const uint8x16_t packed = vld1q_u8(bytes);
  return {vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15))), vreinterpretq_s8_u8(vshrq_n_u8(packed, 4))};
}

// 16 for each set bit of 32, element i at bit i. Reads 16 bytes, of which the first four count.
inline Int8x32 high_bits(const uint8_t* bytes) {
  const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
  const uint8x16_t low_index = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
  const uint8x16_t packed = vld1q_u8(bytes), sixteen = vdupq_n_u8(16);
  const uint8x16_t low = vqtbl1q_u8(packed, low_index);
  const uint8x16_t high = vqtbl1q_u8(packed, vaddq_u8(low_index, vdupq_n_u8(2)));
  return {vreinterpretq_s8_u8(vandq_u8(vtstq_u8(low, bit), sixteen)),
          vreinterpretq_s8_u8(vandq_u8(vtstq_u8(high, bit), sixteen))};
}

inline Int8x32 either(Int8x32 a, Int8x32 b) {
  return {vorrq_s8(a.low, b.low), vorrq_s8(a.high, b.high)};
}

struct Q8_0 {
  static constexpr int kBytes = 34, kSubs = 1, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int) {
    return {vreinterpretq_s8_u8(vld1q_u8(block + 2)), vreinterpretq_s8_u8(vld1q_u8(block + 18))};
  }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t*) {
    scale[0] = load_halves(blocks, 0);
  }
};

struct Q4_0 {
  static constexpr int kBytes = 18, kSubs = 1, kGroups = 1, kOffset = 8;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int) { return nibbles(block + 2); }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t*) {
    scale[0] = load_halves(blocks, 0);
  }
};

struct Q4_1 {
  static constexpr int kBytes = 20, kSubs = 1, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int) { return nibbles(block + 4); }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t* min) {
    const uint16x8_t both = vreinterpretq_u16_u32(load_words(blocks, 0));  // scale, minimum of each row
    scale[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(vuzp1q_u16(both, both))));
    min[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(vuzp2q_u16(both, both))));
  }
};

struct Q5_0 {
  static constexpr int kBytes = 22, kSubs = 1, kGroups = 1, kOffset = 16;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int) { return either(nibbles(block + 6), high_bits(block + 2)); }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t*) {
    scale[0] = load_halves(blocks, 0);
  }
};

struct Q5_1 {
  static constexpr int kBytes = 24, kSubs = 1, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int) { return either(nibbles(block + 8), high_bits(block + 4)); }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t* min) {
    Q4_1::scales(blocks, scale, min);
  }
};

// The six-bit scales and minima of q4_k and q5_k: see unpack_k_scales. Byte j of a lane is the j-th of four.
inline void k_scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t* min) {
  const float32x4_t d = load_halves(blocks, 0), dmin = vnegq_f32(load_halves(blocks, 2));
  const uint32x4_t a = load_words(blocks, 4), b = load_words(blocks, 8), c = load_words(blocks, 12);
  const uint32x4_t six = vdupq_n_u32(0x3f3f3f3f), four = vdupq_n_u32(0x0f0f0f0f),
                   two = vdupq_n_u32(0x30303030);
  const uint32x4_t packed[2] = {vandq_u32(a, six),
                                vorrq_u32(vandq_u32(c, four), vandq_u32(vshrq_n_u32(a, 2), two))};
  const uint32x4_t mins[2] = {
      vandq_u32(b, six), vorrq_u32(vandq_u32(vshrq_n_u32(c, 4), four), vandq_u32(vshrq_n_u32(b, 2), two))};
  const uint32x4_t byte = vdupq_n_u32(255);
  for (int sub = 0; sub < 8; ++sub) {
    const int32x4_t shift = vdupq_n_s32(-8 * (sub % 4));
    scale[sub] = vmulq_f32(d, vcvtq_f32_u32(vandq_u32(vshlq_u32(packed[sub / 4], shift), byte)));
    min[sub] = vmulq_f32(dmin, vcvtq_f32_u32(vandq_u32(vshlq_u32(mins[sub / 4], shift), byte)));
  }
}

// 32 nibbles of 32 bytes: the low ones for even `sub`, the high ones for odd.
inline Int8x32 k_nibbles(const uint8_t* bytes, int sub) {
  const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(-4 * (sub % 2)));
  const uint8x16_t four = vdupq_n_u8(15);
  return {vreinterpretq_s8_u8(vandq_u8(vshlq_u8(vld1q_u8(bytes), shift), four)),
          vreinterpretq_s8_u8(vandq_u8(vshlq_u8(vld1q_u8(bytes + 16), shift), four))};
}

// The bits of `mask` in 32 bytes after a shift to the left (negative: to the right).
inline Int8x32 k_high(const uint8_t* bytes, int left, uint8_t mask) {
  const int8x16_t shift = vdupq_n_s8(static_cast<int8_t>(left));
  return {vreinterpretq_s8_u8(vandq_u8(vshlq_u8(vld1q_u8(bytes), shift), vdupq_n_u8(mask))),
          vreinterpretq_s8_u8(vandq_u8(vshlq_u8(vld1q_u8(bytes + 16), shift), vdupq_n_u8(mask)))};
}

struct Q4_K {
  static constexpr int kBytes = 144, kSubs = 8, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int sub) { return k_nibbles(block + 16 + 32 * (sub / 2), sub); }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t* min) {
    k_scales(blocks, scale, min);
  }
};

struct Q5_K {
  static constexpr int kBytes = 176, kSubs = 8, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int sub) {
    return either(k_nibbles(block + 48 + 32 * (sub / 2), sub), k_high(block + 16, 4 - sub, 16));
  }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t* min) {
    k_scales(blocks, scale, min);
  }
};

struct Q6_K {
  static constexpr int kBytes = 210, kSubs = 8, kGroups = 2, kOffset = 32;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int sub) {
    const int half = sub / 4, t = sub % 4;
    return either(k_nibbles(block + 64 * half + 32 * (t % 2), t / 2),
                  k_high(block + 128 + 32 * half, 4 - 2 * t, 48));
  }
  static void scales(const uint8_t* const* blocks, float32x4_t* scale, float32x4_t*) {
    const float32x4_t d = load_halves(blocks, 208);
    for (int quad = 0; quad < 4; ++quad) {
      const uint32x4_t packed = load_words(blocks, 192 + 4 * quad);
      for (int i = 0; i < 4; ++i) {  // byte i of each lane, with its sign
        const int32x4_t top = vreinterpretq_s32_u32(vshlq_u32(packed, vdupq_n_s32(24 - 8 * i)));
        scale[4 * quad + i] = vmulq_f32(d, vcvtq_f32_s32(vshrq_n_s32(top, 24)));
      }
    }
  }
};

// The blocks of four weight rows, `step` apart; rows past the last are the last again (their results are
// dropped).
struct Four {
  const uint8_t* row[4];
};

inline Four four_rows(const uint8_t* data, int64_t stride, int64_t columns, int64_t first, int64_t step) {
  Four rows;
  for (int i = 0; i < 4; ++i) {
    const int64_t column = first + i * step;
    rows.row[i] = data + (column < columns ? column : columns - 1) * stride;
  }
  return rows;
}

}  // namespace
}  // namespace fathom
