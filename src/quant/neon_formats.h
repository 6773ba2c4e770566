// How NEON reads each block format, for the files built with instruction-set flags: everything has internal
// linkage. A format F reads 32 elements of a block (`sub`: which 32) as stored, that is plus kOffset. Of the
// same block of four weight rows, F::Scales keeps what scale() and min() make one vector of, lane = row.
// Loops over `sub` should be unrolled: shifts by a constant are cheap.
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

// Returns a vector of zeros that is made on the spot. A stored one would have to be read as an operand.
inline int32x4_t fresh_zero() {
  int32x4_t zero;
  asm volatile("movi %0.4s, #0" : "=w"(zero));
  return zero;
}

// Dot products of four weight rows, in four parts each -> lane = row.
inline int32x4_t sum_lanes(const int32x4_t* dots) {
  return vpaddq_s32(vpaddq_s32(dots[0], dots[1]), vpaddq_s32(dots[2], dots[3]));
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

// 32 elements of four weight rows: for each 8 elements, rows 0 and 1 side by side, and rows 2 and 3.
struct Zipped {
  int8x16_t pair[4][2];
};

// [a0 a1 a0 a1] and [a2 a3 a2 a3]: a number for each of four columns, as the lanes of smmla's results want it
// (row 0 column 0, row 0 column 1, row 1 column 0, row 1 column 1).
struct PairsOf {
  float32x4_t left, right;
  explicit PairsOf(float32x4_t four) {
    const float64x2_t pairs = vreinterpretq_f64_f32(four);
    left = vreinterpretq_f32_f64(vzip1q_f64(pairs, pairs));
    right = vreinterpretq_f32_f64(vzip2q_f64(pairs, pairs));
  }
  void store(uint8_t* at) const {
    vst1q_u8(at, vreinterpretq_u8_f32(left));
    vst1q_u8(at + 16, vreinterpretq_u8_f32(right));
  }
};

struct Words {
  uint32x4_t word[4];
};

// 16 bytes of four blocks, turned: lane = row.
inline Words load_turned(const uint8_t* const* blocks, int offset) {
  uint32x4_t row[4];
  for (int c = 0; c < 4; ++c) row[c] = vreinterpretq_u32_u8(vld1q_u8(blocks[c] + offset));
  const uint64x2_t a = vreinterpretq_u64_u32(vtrn1q_u32(row[0], row[1])),
                   b = vreinterpretq_u64_u32(vtrn1q_u32(row[2], row[3]));
  const uint64x2_t c = vreinterpretq_u64_u32(vtrn2q_u32(row[0], row[1])),
                   d = vreinterpretq_u64_u32(vtrn2q_u32(row[2], row[3]));
  return {{vreinterpretq_u32_u64(vtrn1q_u64(a, b)), vreinterpretq_u32_u64(vtrn1q_u64(c, d)),
           vreinterpretq_u32_u64(vtrn2q_u64(a, b)), vreinterpretq_u32_u64(vtrn2q_u64(c, d))}};
}

struct TwoFloats {
  float32x4_t low, high;
};

// Two f16 values in each lane.
inline TwoFloats floats_of_halves(uint32x4_t halves) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(halves))),
          vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(halves, 16)))};
}

// d * byte i of each lane, exactly: d was an f16.
inline float32x4_t times_byte(float32x4_t d, uint32x4_t bytes, int i) {
  const uint32x4_t byte = vandq_u32(bytes, vdupq_n_u32(255u << (8 * i)));
  if (i == 0) return vmulq_f32(d, vcvtq_f32_u32(byte));
  if (i == 1) return vmulq_f32(d, vcvtq_n_f32_u32(byte, 8));
  if (i == 2) return vmulq_f32(d, vcvtq_n_f32_u32(byte, 16));
  return vmulq_f32(d, vcvtq_n_f32_u32(byte, 24));
}

// The same of signed bytes: each is moved to the top of its lane, with zeros below.
inline float32x4_t times_signed_byte(float32x4_t d, uint32x4_t bytes, uint32_t i) {
  const uint32_t zeros = 0xffffff;  // indices past the end
  const uint32x4_t index = {i << 24 | zeros, (i + 4) << 24 | zeros, (i + 8) << 24 | zeros,
                            (i + 12) << 24 | zeros};
  const uint8x16_t top = vqtbl1q_u8(vreinterpretq_u8_u32(bytes), vreinterpretq_u8_u32(index));
  return vmulq_f32(d, vcvtq_n_f32_s32(vreinterpretq_s32_u8(top), 24));
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

// A block of 32 has one scale, and one minimum or none.
struct PlainScales {
  float32x4_t scale, min;
};

struct Plain {
  using Scales = PlainScales;
  static float32x4_t scale(const Scales& scales, int) { return scales.scale; }
  static float32x4_t min(const Scales& scales, int) { return scales.min; }
};

struct Q8_0 : Plain {
  static constexpr int kBytes = 34, kSubs = 1, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int) {
    return {vreinterpretq_s8_u8(vld1q_u8(block + 2)), vreinterpretq_s8_u8(vld1q_u8(block + 18))};
  }
  static Scales scales(const uint8_t* const* blocks) { return {load_halves(blocks, 0), vdupq_n_f32(0.0f)}; }
};

struct Q4_0 : Plain {
  static constexpr int kBytes = 18, kSubs = 1, kGroups = 1, kOffset = 8;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int) { return nibbles(block + 2); }
  static Scales scales(const uint8_t* const* blocks) { return {load_halves(blocks, 0), vdupq_n_f32(0.0f)}; }
};

struct Q4_1 : Plain {
  static constexpr int kBytes = 20, kSubs = 1, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int) { return nibbles(block + 4); }
  static Scales scales(const uint8_t* const* blocks) {
    const TwoFloats both = floats_of_halves(load_words(blocks, 0));
    return {both.low, both.high};
  }
};

struct Q5_0 : Plain {
  static constexpr int kBytes = 22, kSubs = 1, kGroups = 1, kOffset = 16;
  static constexpr bool kMin = false;
  static Int8x32 load(const uint8_t* block, int) { return either(nibbles(block + 6), high_bits(block + 2)); }
  static Scales scales(const uint8_t* const* blocks) { return {load_halves(blocks, 0), vdupq_n_f32(0.0f)}; }
};

struct Q5_1 : Plain {
  static constexpr int kBytes = 24, kSubs = 1, kGroups = 1, kOffset = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int) { return either(nibbles(block + 8), high_bits(block + 4)); }
  static Scales scales(const uint8_t* const* blocks) { return Q4_1::scales(blocks); }
};

// The six-bit scales and minima of q4_k and q5_k: see unpack_k_scales. Byte j of a lane is the j-th of four.
struct KScales {
  float32x4_t d, dmin;
  uint32x4_t scale[2], min[2];
};

struct WithKScales {
  using Scales = KScales;
  static Scales scales(const uint8_t* const* blocks) {
    const Words w = load_turned(blocks, 0);
    const TwoFloats d = floats_of_halves(w.word[0]);
    const uint32x4_t a = w.word[1], b = w.word[2], c = w.word[3];
    const uint32x4_t six = vdupq_n_u32(0x3f3f3f3f), four = vdupq_n_u32(0x0f0f0f0f),
                     two = vdupq_n_u32(0x30303030);
    return {
        d.low,
        vnegq_f32(d.high),
        {vandq_u32(a, six), vorrq_u32(vandq_u32(c, four), vandq_u32(vshrq_n_u32(a, 2), two))},
        {vandq_u32(b, six), vorrq_u32(vandq_u32(vshrq_n_u32(c, 4), four), vandq_u32(vshrq_n_u32(b, 2), two))},
    };
  }
  static float32x4_t scale(const Scales& scales, int sub) {
    return times_byte(scales.d, scales.scale[sub / 4], sub % 4);
  }
  static float32x4_t min(const Scales& scales, int sub) {
    return times_byte(scales.dmin, scales.min[sub / 4], sub % 4);
  }
};

inline Int8x32 signed_bytes(uint8x16_t low, uint8x16_t high) {
  return {vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)};
}

// 16 nibbles: the low ones for even `sub`, the high ones for odd.
inline uint8x16_t k_nibbles(const uint8_t* bytes, int sub) {
  const uint8x16_t packed = vld1q_u8(bytes);
  return sub % 2 == 0 ? vandq_u8(packed, vdupq_n_u8(15)) : vshrq_n_u8(packed, 4);
}

struct Q4_K : WithKScales {
  static constexpr int kBytes = 144, kSubs = 8, kGroups = 1, kOffset = 0, kLowAt = 16, kHighAt = 0;
  static constexpr bool kMin = true;
  static Int8x32 load(const uint8_t* block, int sub) {
    const uint8_t* bytes = block + kLowAt + 32 * (sub / 2);
    return signed_bytes(k_nibbles(bytes, sub), k_nibbles(bytes + 16, sub));
  }
};

struct Q5_K : WithKScales {
  static constexpr int kBytes = 176, kSubs = 8, kGroups = 1, kOffset = 0, kLowAt = 48, kHighAt = 16;
  static constexpr bool kMin = true;
  // Four bits of `nibbles` under bit `sub` of `high`.
  static uint8x16_t join(const uint8_t* nibbles, const uint8_t* high, int sub) {
    const uint8x16_t packed = vld1q_u8(nibbles), low = sub % 2 == 0 ? packed : vshrq_n_u8(packed, 4);
    return vandq_u8(vsliq_n_u8(low, vld1q_u8(high) >> sub, 4), vdupq_n_u8(31));
  }
  static Int8x32 load(const uint8_t* block, int sub) {
    const uint8_t *nibbles = block + kLowAt + 32 * (sub / 2), *high = block + kHighAt;
    return signed_bytes(join(nibbles, high, sub), join(nibbles + 16, high + 16, sub));
  }
};

struct Q6_K {
  static constexpr int kBytes = 210, kSubs = 8, kGroups = 2, kOffset = 32;
  static constexpr bool kMin = false;
  struct Scales {
    float32x4_t d;
    Words bytes;
  };
  static Scales scales(const uint8_t* const* blocks) {
    return {load_halves(blocks, 208), load_turned(blocks, 192)};
  }
  static float32x4_t scale(const Scales& scales, int group) {
    return times_signed_byte(scales.d, scales.bytes.word[group / 4], static_cast<uint32_t>(group % 4));
  }
  static float32x4_t min(const Scales&, int) { return vdupq_n_f32(0.0f); }
  // Four bits of `low` under the two bits 2t of `high`.
  static uint8x16_t join(uint8x16_t low, uint8x16_t high, int t) {
    if (t % 2 == 1) high = vshrq_n_u8(high, 2);
    if (t < 2) return vandq_u8(vsliq_n_u8(low, high, 4), vdupq_n_u8(63));
    return vbslq_u8(vdupq_n_u8(48), high, vshrq_n_u8(low, 4));
  }
  static Int8x32 load(const uint8_t* block, int sub) {
    const int half = sub / 4, t = sub % 4;
    const uint8_t *low = block + 64 * half + 32 * (t % 2), *high = block + 128 + 32 * half;
    return signed_bytes(join(vld1q_u8(low), vld1q_u8(high), t),
                        join(vld1q_u8(low + 16), vld1q_u8(high + 16), t));
  }
};

// The blocks of four weight rows, `step` apart; rows past the last are the last again (their results are
// dropped).
struct Four {
  const uint8_t* row[4];
  Four at(int64_t offset) const {
    return {{row[0] + offset, row[1] + offset, row[2] + offset, row[3] + offset}};
  }
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
