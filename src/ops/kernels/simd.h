// Eight floats at once, for the instruction set that the including file is built for: NEON, AVX2, or plain
// loops. Lane by lane all three give the same bits (every product-sum is an explicit fused multiply-add), so
// kernels written over F8 differ in speed only. Internal linkage throughout, and no other header: files built
// with ISA flags include this.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(FATHOM_SIMD_PLAIN)
#elif defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#else
#define FATHOM_SIMD_PLAIN
#endif

// Before a loop of constant length over an array that must become registers: -O2 alone leaves the loop and
// the array.
#if defined(__clang__)
#define FATHOM_UNROLL _Pragma("unroll")
#else
#define FATHOM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace fathom {
namespace {

inline float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// IEEE half to float, exact; subnormals by the float subtraction that normalises them.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, rest = half & 0x7FFFu;
  if (rest >= 0x7C00) return bits_to_float(sign | 0x7F800000u | (rest & 0x3FF) << 13);
  if (rest >= 0x0400) return bits_to_float(sign | ((rest << 13) + (112u << 23)));
  const float magnitude = bits_to_float(0x3F000000u + rest) - 0.5f;  // rest · 2⁻²⁴
  return bits_to_float(sign | float_to_bits(magnitude));
}

// Float to IEEE half, to nearest, ties to even; too large becomes infinity, NaN stays a quiet NaN.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
  if (size > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | (size >> 13 & 0x3FF));
  if (size >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above
  if (size >= 0x38800000u) {                                              // 2⁻¹⁴: a normal half
    const uint32_t rounded = size + 0xFFFu + (size >> 13 & 1);
    return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
  }
  const float shifted = bits_to_float(size) + 0.5f;  // the sum rounds to multiples of 2⁻²⁴
  return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3F000000u));
}

inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

#if defined(FATHOM_SIMD_PLAIN)

struct F8 {
  float lane[8];
};

template <class Fn>
inline F8 each_lane(Fn&& fn) {
  F8 out;
  for (int i = 0; i < 8; ++i) out.lane[i] = fn(i);
  return out;
}

inline F8 broadcast(float x) {
  return each_lane([&](int) { return x; });
}
inline F8 load(const float* p) {
  return each_lane([&](int i) { return p[i]; });
}
inline void store(float* p, const F8& a) {
  for (int i = 0; i < 8; ++i) p[i] = a.lane[i];
}
inline F8 add(const F8& a, const F8& b) {
  return each_lane([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline F8 sub(const F8& a, const F8& b) {
  return each_lane([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline F8 mul(const F8& a, const F8& b) {
  return each_lane([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline F8 div(const F8& a, const F8& b) {
  return each_lane([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline F8 max(const F8& a, const F8& b) {
  return each_lane([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline F8 min(const F8& a, const F8& b) {
  return each_lane([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// x between two numbers; a NaN stays one, which max and min do not promise.
inline F8 clamp(const F8& x, const F8& least, const F8& most) {
  return min(most, max(least, x));
}
inline F8 fma(const F8& a, const F8& b, const F8& c) {  // a · b + c
  return each_lane([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
inline F8 absolute(const F8& a) {
  return each_lane([&](int i) { return __builtin_fabsf(a.lane[i]); });
}
// Lane by lane: x < limit ? below : otherwise.
inline F8 select_less(const F8& x, const F8& limit, const F8& below, const F8& otherwise) {
  return each_lane([&](int i) { return x.lane[i] < limit.lane[i] ? below.lane[i] : otherwise.lane[i]; });
}
// The low bits of a lane moved into the exponent of 1: 2ⁿ from the n that rounding left in them.
inline F8 power_of_two(const F8& rounded) {
  return each_lane(
      [&](int i) { return bits_to_float((float_to_bits(rounded.lane[i]) << 23) + 0x3F800000u); });
}
// Of a whole number left in the low bits: where it is odd; and x negated where its second bit is set.
inline F8 select_odd(const F8& whole, const F8& odd, const F8& even) {
  return each_lane([&](int i) { return float_to_bits(whole.lane[i]) & 1 ? odd.lane[i] : even.lane[i]; });
}
inline F8 negate_by_second_bit(const F8& x, const F8& whole) {
  return each_lane([&](int i) {
    return bits_to_float(float_to_bits(x.lane[i]) ^ (float_to_bits(whole.lane[i]) & 2) << 30);
  });
}
inline F8 round_to_half(const F8& a) {
  return each_lane([&](int i) { return half_to_float(float_to_half(a.lane[i])); });
}
inline F8 load_half(const void* p) {
  uint16_t half[8];
  __builtin_memcpy(half, p, sizeof half);
  return each_lane([&](int i) { return half_to_float(half[i]); });
}
inline F8 broadcast_half(const void* p) {
  uint16_t half;
  __builtin_memcpy(&half, p, sizeof half);
  return broadcast(half_to_float(half));
}
inline void store_half(void* p, const F8& a) {
  uint16_t half[8];
  for (int i = 0; i < 8; ++i) half[i] = float_to_half(a.lane[i]);
  __builtin_memcpy(p, half, sizeof half);
}
inline F8 load_bfloat(const void* p) {
  uint16_t bfloat[8];
  __builtin_memcpy(bfloat, p, sizeof bfloat);
  return each_lane([&](int i) { return bits_to_float(uint32_t{bfloat[i]} << 16); });
}
inline F8 load_int8(const void* p) {
  int8_t value[8];
  __builtin_memcpy(value, p, sizeof value);
  return each_lane([&](int i) { return static_cast<float>(value[i]); });
}
// ((0+4) + (1+5)) + ((2+6) + (3+7)): the one order in which lanes are summed.
inline float sum_lanes(const F8& a) {
  return ((a.lane[0] + a.lane[4]) + (a.lane[1] + a.lane[5])) +
         ((a.lane[2] + a.lane[6]) + (a.lane[3] + a.lane[7]));
}
inline void store_sums(float* p, const F8& a, const F8& b, const F8& c, const F8& d) {
  p[0] = sum_lanes(a);
  p[1] = sum_lanes(b);
  p[2] = sum_lanes(c);
  p[3] = sum_lanes(d);
}
inline float max_lane(const F8& a) {
  float best = a.lane[0];
  for (int i = 1; i < 8; ++i) best = a.lane[i] > best ? a.lane[i] : best;
  return best;
}

#elif defined(__aarch64__)

struct F8 {
  float32x4_t lo, hi;
};

inline F8 broadcast(float x) {
  return {vdupq_n_f32(x), vdupq_n_f32(x)};
}
inline F8 load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}
inline void store(float* p, F8 a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}
inline F8 add(F8 a, F8 b) {
  return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)};
}
inline F8 sub(F8 a, F8 b) {
  return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)};
}
inline F8 mul(F8 a, F8 b) {
  return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}
inline F8 div(F8 a, F8 b) {
  return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)};
}
inline F8 max(F8 a, F8 b) {
  return {vmaxnmq_f32(a.lo, b.lo), vmaxnmq_f32(a.hi, b.hi)};
}
inline F8 min(F8 a, F8 b) {
  return {vminnmq_f32(a.lo, b.lo), vminnmq_f32(a.hi, b.hi)};
}
inline F8 clamp(F8 x, F8 least, F8 most) {
  return {vminq_f32(most.lo, vmaxq_f32(least.lo, x.lo)), vminq_f32(most.hi, vmaxq_f32(least.hi, x.hi))};
}
inline F8 fma(F8 a, F8 b, F8 c) {
  return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
}
inline F8 absolute(F8 a) {
  return {vabsq_f32(a.lo), vabsq_f32(a.hi)};
}
inline F8 select_less(F8 x, F8 limit, F8 below, F8 otherwise) {
  return {vbslq_f32(vcltq_f32(x.lo, limit.lo), below.lo, otherwise.lo),
          vbslq_f32(vcltq_f32(x.hi, limit.hi), below.hi, otherwise.hi)};
}
inline float32x4_t power_of_two(float32x4_t rounded) {
  const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(rounded), 23);
  return vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(0x3F800000)));
}
inline F8 power_of_two(F8 rounded) {
  return {power_of_two(rounded.lo), power_of_two(rounded.hi)};
}
inline float32x4_t select_odd(float32x4_t whole, float32x4_t odd, float32x4_t even) {
  return vbslq_f32(vtstq_s32(vreinterpretq_s32_f32(whole), vdupq_n_s32(1)), odd, even);
}
inline F8 select_odd(F8 whole, F8 odd, F8 even) {
  return {select_odd(whole.lo, odd.lo, even.lo), select_odd(whole.hi, odd.hi, even.hi)};
}
inline float32x4_t negate_by_second_bit(float32x4_t x, float32x4_t whole) {
  const uint32x4_t bit = vandq_u32(vreinterpretq_u32_f32(whole), vdupq_n_u32(2));
  return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), vshlq_n_u32(bit, 30)));
}
inline F8 negate_by_second_bit(F8 x, F8 whole) {
  return {negate_by_second_bit(x.lo, whole.lo), negate_by_second_bit(x.hi, whole.hi)};
}
inline F8 round_to_half(F8 a) {
  return {vcvt_f32_f16(vcvt_f16_f32(a.lo)), vcvt_f32_f16(vcvt_f16_f32(a.hi))};
}
inline F8 load_half(const void* p) {
  const float16x8_t half = vreinterpretq_f16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
  return {vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)};
}
inline F8 broadcast_half(const void* p) {
  const float32x4_t four = vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16(static_cast<const uint16_t*>(p))));
  return {four, four};
}
inline void store_half(void* p, F8 a) {
  const float16x8_t half = vcvt_high_f16_f32(vcvt_f16_f32(a.lo), a.hi);
  vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_f16(half));
}
inline F8 load_bfloat(const void* p) {
  const uint16x8_t bfloat = vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bfloat), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(bfloat, 16))};
}
inline F8 load_int8(const void* p) {
  const int16x8_t wide = vmovl_s8(vld1_s8(static_cast<const int8_t*>(p)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}
inline float sum_lanes(F8 a) {
  const float32x4_t four = vaddq_f32(a.lo, a.hi);
  const float32x4_t two = vpaddq_f32(four, four);
  return vgetq_lane_f32(vpaddq_f32(two, two), 0);
}
inline void store_sums(float* p, F8 a, F8 b, F8 c, F8 d) {  // sum_lanes of four
  const float32x4_t ab = vpaddq_f32(vaddq_f32(a.lo, a.hi), vaddq_f32(b.lo, b.hi));
  const float32x4_t cd = vpaddq_f32(vaddq_f32(c.lo, c.hi), vaddq_f32(d.lo, d.hi));
  vst1q_f32(p, vpaddq_f32(ab, cd));
}
inline float max_lane(F8 a) {
  return vmaxnmvq_f32(vmaxnmq_f32(a.lo, a.hi));
}

#else  // AVX2

struct F8 {
  __m256 v;
};

inline F8 broadcast(float x) {
  return {_mm256_set1_ps(x)};
}
inline F8 load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
inline void store(float* p, F8 a) {
  _mm256_storeu_ps(p, a.v);
}
inline F8 add(F8 a, F8 b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline F8 sub(F8 a, F8 b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline F8 mul(F8 a, F8 b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline F8 div(F8 a, F8 b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline F8 max(F8 a, F8 b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline F8 min(F8 a, F8 b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline F8 clamp(F8 x, F8 least, F8 most) {  // of a NaN and a number, the instruction gives the second
  return {_mm256_min_ps(most.v, _mm256_max_ps(least.v, x.v))};
}
inline F8 fma(F8 a, F8 b, F8 c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
inline F8 absolute(F8 a) {
  return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}
inline F8 select_less(F8 x, F8 limit, F8 below, F8 otherwise) {
  return {_mm256_blendv_ps(otherwise.v, below.v, _mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ))};
}
inline F8 power_of_two(F8 rounded) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(rounded.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(0x3F800000)))};
}
inline F8 select_odd(F8 whole, F8 odd, F8 even) {
  const __m256i low_bit_to_sign = _mm256_slli_epi32(_mm256_castps_si256(whole.v), 31);
  return {_mm256_blendv_ps(even.v, odd.v, _mm256_castsi256_ps(low_bit_to_sign))};
}
inline F8 negate_by_second_bit(F8 x, F8 whole) {
  const __m256i bit = _mm256_and_si256(_mm256_castps_si256(whole.v), _mm256_set1_epi32(2));
  return {_mm256_xor_ps(x.v, _mm256_castsi256_ps(_mm256_slli_epi32(bit, 30)))};
}
inline F8 round_to_half(F8 a) {
  return {_mm256_cvtph_ps(_mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT))};
}
inline F8 load_half(const void* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
inline F8 broadcast_half(const void* p) {
  uint16_t half;
  __builtin_memcpy(&half, p, sizeof half);
  return broadcast(_cvtsh_ss(half));
}
inline void store_half(void* p, F8 a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F8 load_bfloat(const void* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline F8 load_int8(const void* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))))};
}
inline float sum_lanes(F8 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_hadd_ps(four, four);
  return _mm_cvtss_f32(_mm_hadd_ps(two, two));
}
inline __m256 add_halves(F8 a, F8 b) {  // low half: a's halves added; high half: b's
  return _mm256_add_ps(_mm256_permute2f128_ps(a.v, b.v, 0x20), _mm256_permute2f128_ps(a.v, b.v, 0x31));
}
inline void store_sums(float* p, F8 a, F8 b, F8 c, F8 d) {  // sum_lanes of four
  const __m256 pairs = _mm256_hadd_ps(add_halves(a, b), add_halves(c, d));
  const __m256 sums = _mm256_hadd_ps(pairs, pairs);  // a c a c | b d b d
  _mm_storeu_ps(p, _mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
}
inline float max_lane(F8 a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

#endif

}  // namespace
}  // namespace fathom
