// A set of tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace fathom {

class TokenBits {
 public:
  explicit TokenBits(size_t vocab = 0) : words_((vocab + 63) / 64) {}

  void set(int32_t id) { words_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64); }
  bool has(int32_t id) const { return (words_[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0; }
  size_t bytes() const { return words_.size() * sizeof(uint64_t); }

  // The logits of all other tokens become −∞.
  void keep(std::span<float> logits) const {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (size_t begin = 0; begin < logits.size(); begin += 64) {
      const uint64_t word = begin / 64 < words_.size() ? words_[begin / 64] : 0;
      const std::span<float> part = logits.subspan(begin, std::min<size_t>(64, logits.size() - begin));
      if (word == 0) {
        std::fill(part.begin(), part.end(), kNever);
      } else if (word != ~uint64_t{0}) {
        for (size_t i = 0; i < part.size(); ++i) {
          if ((word >> i & 1) == 0) part[i] = kNever;
        }
      }
    }
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace fathom
