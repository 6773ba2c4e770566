// How AVX2 and AVX-512 read each block format, for the files built with instruction-set flags: everything has
// internal linkage. A format F reads 32 elements of a block (`sub`: which 32) as stored, that is plus
// kOffset, and the scales and minima of the same block of four weight rows, lane = row. kSigned: stored as
// signed bytes, the others as unsigned; kLargest: no byte is larger, by magnitude.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace fathom {
namespace {  // NOLINT(google-build-namespaces): see above

inline int load_int(const uint8_t* bytes) {
  int value;
  __builtin_memcpy(&value, bytes, 4);
  return value;
}

// Four bytes of each of four blocks.
inline __m128i load_words(const uint8_t* const* blocks, int offset) {
  return _mm_setr_epi32(load_int(blocks[0] + offset), load_int(blocks[1] + offset),
                        load_int(blocks[2] + offset), load_int(blocks[3] + offset));
}

// Of four words the first halves, then the second.
inline __m128i halves_apart(__m128i words) {
  return _mm_shuffle_epi8(words, _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
}

// A half of each block at its start, or both halves of the four bytes there. No byte past a block is read.
inline __m128 load_halves(const uint8_t* const* blocks) {
  return _mm_cvtph_ps(halves_apart(load_words(blocks, 0)));
}
inline void load_halves(const uint8_t* const* blocks, __m128* first, __m128* second) {
  const __m256 both = _mm256_cvtph_ps(halves_apart(load_words(blocks, 0)));
  *first = _mm256_castps256_ps128(both);
  *second = _mm256_extractf128_ps(both, 1);
}
// The half in front of `end`.
inline __m128 load_halves_before(const uint8_t* const* blocks, int end) {
  return _mm_cvtph_ps(_mm_srli_si128(halves_apart(load_words(blocks, end - 4)), 8));
}

inline __m128i load16(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}
inline __m256i load32(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

// 16 bytes of nibbles: the low ones, then the high ones.
inline __m256i nibbles(const uint8_t* bytes) {
  const __m256i twice = _mm256_broadcastsi128_si256(load16(bytes));
  const __m256i moved = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 0, 4, 4));
  return _mm256_and_si256(moved, _mm256_set1_epi8(15));
}

// 16 for each set bit of 32, element i at bit i.
inline __m256i high_bits(const uint8_t* bytes) {
  const __m256i index = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ULL));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(load_int(bytes)), index);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

struct Q8_0 {
  static constexpr int kBytes = 34, kSubs = 1, kGroups = 1, kOffset = 0, kLargest = 128;
  static constexpr bool kMin = false, kSigned = true;
  static __m256i load(const uint8_t* block, int) { return load32(block + 2); }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128*) { scale[0] = load_halves(blocks); }
};

struct Q4_0 {
  static constexpr int kBytes = 18, kSubs = 1, kGroups = 1, kOffset = 8, kLargest = 15;
  static constexpr bool kMin = false, kSigned = false;
  static __m256i load(const uint8_t* block, int) { return nibbles(block + 2); }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128*) { scale[0] = load_halves(blocks); }
};

struct Q4_1 {
  static constexpr int kBytes = 20, kSubs = 1, kGroups = 1, kOffset = 0, kLargest = 15;
  static constexpr bool kMin = true, kSigned = false;
  static __m256i load(const uint8_t* block, int) { return nibbles(block + 4); }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128* min) {
    load_halves(blocks, scale, min);
  }
};

struct Q5_0 {
  static constexpr int kBytes = 22, kSubs = 1, kGroups = 1, kOffset = 16, kLargest = 31;
  static constexpr bool kMin = false, kSigned = false;
  static __m256i load(const uint8_t* block, int) {
    return _mm256_or_si256(nibbles(block + 6), high_bits(block + 2));
  }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128*) { scale[0] = load_halves(blocks); }
};

struct Q5_1 {
  static constexpr int kBytes = 24, kSubs = 1, kGroups = 1, kOffset = 0, kLargest = 31;
  static constexpr bool kMin = true, kSigned = false;
  static __m256i load(const uint8_t* block, int) {
    return _mm256_or_si256(nibbles(block + 8), high_bits(block + 4));
  }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128* min) {
    Q4_1::scales(blocks, scale, min);
  }
};

// Byte i of each lane.
inline __m128i byte_of(__m128i words, int i) {
  return _mm_and_si128(_mm_srl_epi32(words, _mm_cvtsi32_si128(8 * i)), _mm_set1_epi32(255));
}

// The six-bit scales and minima of q4_k and q5_k: see unpack_k_scales.
inline void k_scales(const uint8_t* const* blocks, __m128* scale, __m128* min) {
  __m128 d, dmin;
  load_halves(blocks, &d, &dmin);
  dmin = _mm_xor_ps(dmin, _mm_set1_ps(-0.0f));
  const __m128i a = load_words(blocks, 4), b = load_words(blocks, 8), c = load_words(blocks, 12);
  const __m128i six = _mm_set1_epi32(0x3f3f3f3f), four = _mm_set1_epi32(0x0f0f0f0f),
                two = _mm_set1_epi32(0x30303030);
  const __m128i packed[2] = {_mm_and_si128(a, six),
                             _mm_or_si128(_mm_and_si128(c, four), _mm_and_si128(_mm_srli_epi32(a, 2), two))};
  const __m128i mins[2] = {_mm_and_si128(b, six), _mm_or_si128(_mm_and_si128(_mm_srli_epi32(c, 4), four),
                                                               _mm_and_si128(_mm_srli_epi32(b, 2), two))};
  for (int sub = 0; sub < 8; ++sub) {
    scale[sub] = _mm_mul_ps(d, _mm_cvtepi32_ps(byte_of(packed[sub / 4], sub % 4)));
    min[sub] = _mm_mul_ps(dmin, _mm_cvtepi32_ps(byte_of(mins[sub / 4], sub % 4)));
  }
}

// Bits of each byte: shifted to the right by `right` (negative: to the left), then masked.
inline __m256i bits_of(const uint8_t* bytes, int right, int mask) {
  const __m256i packed = load32(bytes);
  const __m256i moved = right >= 0 ? _mm256_srl_epi16(packed, _mm_cvtsi32_si128(right))
                                   : _mm256_sll_epi16(packed, _mm_cvtsi32_si128(-right));
  return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask)));
}

struct Q4_K {
  static constexpr int kBytes = 144, kSubs = 8, kGroups = 1, kOffset = 0, kLargest = 15;
  static constexpr bool kMin = true, kSigned = false;
  static __m256i load(const uint8_t* block, int sub) {
    return bits_of(block + 16 + 32 * (sub / 2), 4 * (sub % 2), 15);
  }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128* min) {
    k_scales(blocks, scale, min);
  }
};

struct Q5_K {
  static constexpr int kBytes = 176, kSubs = 8, kGroups = 1, kOffset = 0, kLargest = 31;
  static constexpr bool kMin = true, kSigned = false;
  static __m256i load(const uint8_t* block, int sub) {
    return _mm256_or_si256(bits_of(block + 48 + 32 * (sub / 2), 4 * (sub % 2), 15),
                           bits_of(block + 16, sub - 4, 16));
  }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128* min) {
    k_scales(blocks, scale, min);
  }
};

struct Q6_K {
  static constexpr int kBytes = 210, kSubs = 8, kGroups = 2, kOffset = 32, kLargest = 63;
  static constexpr bool kMin = false, kSigned = false;
  static __m256i load(const uint8_t* block, int sub) {
    const int half = sub / 4, t = sub % 4;
    return _mm256_or_si256(bits_of(block + 64 * half + 32 * (t % 2), 4 * (t / 2), 15),
                           bits_of(block + 128 + 32 * half, 2 * t - 4, 48));
  }
  static void scales(const uint8_t* const* blocks, __m128* scale, __m128*) {
    const __m128 d = load_halves_before(blocks, kBytes);
    for (int quad = 0; quad < 4; ++quad) {
      const __m128i packed = load_words(blocks, 192 + 4 * quad);
      for (int i = 0; i < 4; ++i) {  // byte i of each lane, with its sign
        const __m128i top = _mm_sll_epi32(packed, _mm_cvtsi32_si128(24 - 8 * i));
        scale[4 * quad + i] = _mm_mul_ps(d, _mm_cvtepi32_ps(_mm_srai_epi32(top, 24)));
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

// The results of `count` columns, `step` apart; those past the last are dropped.
inline void store_columns(const float* values, int64_t count, int64_t columns, int64_t first, int64_t step,
                          float* out) {
  for (int64_t i = 0; i < count && first + i * step < columns; ++i) out[first + i * step] = values[i];
}

}  // namespace
}  // namespace fathom
