// How much longer a tokenizer's steps may make a text. The steps come from a file: without a bound, a few
// replacements one after the other make gigabytes out of a word.
#pragma once

#include <cstddef>

namespace fathom {

// Far more than Unicode's own forms take (11 times at most) and spaces that become '▁'.
inline constexpr size_t kNormalizerGrowth = 16, kPreTokenizerGrowth = 8, kDecoderGrowth = 8;
inline constexpr size_t kGrowthBytes = 256;  // on top: what is put before a text, whatever its length

constexpr size_t most_bytes(size_t bytes, size_t growth) {
  return bytes * growth + kGrowthBytes;
}

// More bytes are a UserError that names the part, such as "the normalizer".
void check_growth(size_t bytes, size_t most, const char* part);

inline constexpr size_t kMostSteps = 256;        // of a normalizer, a pre-tokenizer, a decoder
inline constexpr size_t kMostTemplateIds = 256;  // that are put around a text

void check_steps(size_t steps, const char* part);

}  // namespace fathom
