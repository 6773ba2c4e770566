#include "text/charsmap.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/format.h"
#include "text/growth.h"
#include "text/unicode.h"

namespace fathom {
namespace {

constexpr size_t kLongestEntry = 256;  // bytes

// A unit of the double array: bit 8 says a value hangs below; bits 0-7 (and 31) are the label; the rest is an
// offset.
bool has_leaf(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t label(uint32_t unit) {
  return unit & (1u << 31 | 0xFF);
}
uint32_t offset(uint32_t unit) {
  return (unit >> 10) << ((unit & 1u << 9) >> 6);
}
uint32_t value(uint32_t unit) {
  return unit & ~(1u << 31);
}

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  if (blob.empty()) return;
  uint32_t size = 0;
  require(blob.size() > sizeof size, "charsmap: {} bytes are too few", blob.size());
  std::memcpy(&size, blob.data(), sizeof size);
  require(size % sizeof(uint32_t) == 0 && size > 0 && size < blob.size() - sizeof size,
          "charsmap: a trie of {} bytes does not fit in {}", size, blob.size());
  trie_.resize(size / sizeof(uint32_t));
  std::memcpy(trie_.data(), blob.data() + sizeof size, size);
  replacements_ = blob.substr(sizeof size + size);
  require(replacements_.back() == '\0', "charsmap: the last replacement has no end");
  for (size_t begin = 0, end; begin < replacements_.size(); begin = end + 1) {
    end = replacements_.find('\0', begin);
    require(end - begin <= kGrowthBytes, "charsmap: a replacement has {} bytes, more than {}", end - begin,
            kGrowthBytes);
  }
}

size_t Charsmap::longest(std::string_view text, size_t at, std::string_view* replacement) const {
  if (trie_.empty()) return 0;
  size_t best = 0;
  uint32_t node = offset(trie_[0]);
  // A trie may lead back to where it was: it is left after more bytes than any entry has.
  const size_t end = std::min(text.size(), at + kLongestEntry);
  for (size_t i = at; i < end; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte == 0) break;
    node ^= byte;
    if (node >= trie_.size() || label(trie_[node]) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    require(node < trie_.size() && value(trie_[node]) < replacements_.size(),
            "charsmap: an entry points outside");
    best = i + 1 - at;
    *replacement = replacements_.c_str() + value(trie_[node]);
  }
  return best;
}

bool Charsmap::whole(std::string_view text, std::string_view* replacement) const {
  // The reference takes the first (shortest) entry that the text begins with, and replaces all of the text by
  // it.
  for (size_t size = 1; size <= text.size(); ++size) {
    std::string_view found;
    if (longest(text.substr(0, size), 0, &found) != size) continue;
    *replacement = found;
    return true;
  }
  return false;
}

std::string Charsmap::replace_by_grapheme(std::string_view text, size_t most) const {
  std::string out;
  const auto append = [&](std::string_view part) {
    check_growth(out.size() + part.size(), most, "the normalizer");
    out += part;
  };
  const auto put = [&](std::string_view part) {
    std::string_view replacement;
    append(whole(part, &replacement) ? replacement : part);
  };
  constexpr size_t kLongestTried = 6;  // bytes
  utf8proc_int32_t state = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    char32_t last = 0;
    do {
      const Utf8Char c = decode_utf8(text, end);
      if (end > at && utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                                       static_cast<utf8proc_int32_t>(c.value), &state)) {
        break;
      }
      last = c.value;
      end += c.size;
    } while (end < text.size());
    std::string_view grapheme = text.substr(at, end - at);
    std::string_view replacement;
    if (grapheme.size() < kLongestTried && whole(grapheme, &replacement)) {
      append(replacement);
    } else {
      while (!grapheme.empty()) {
        const size_t size = decode_utf8(grapheme, 0).size;
        put(grapheme.substr(0, size));
        grapheme.remove_prefix(size);
      }
    }
    at = end;
    state = 0;
  }
  return out;
}

}  // namespace fathom
