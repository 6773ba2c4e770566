// SentencePiece's precompiled character map: a double-array trie of strings, each with its replacement.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class Charsmap {
 public:
  // `blob`: uint32 size of the trie, the trie, the replacements each ended by a zero byte. "" maps nothing.
  // Throws UserError when the sizes do not fit.
  explicit Charsmap(std::string_view blob);

  bool empty() const { return trie_.empty(); }
  // The longest string of the map that text begins with at `at`: its length (0: none) and its replacement.
  size_t longest(std::string_view text, size_t at, std::string_view* replacement) const;
  // As Hugging Face applies it: grapheme by grapheme where those are short, else character by character.
  // A result of more than `most` bytes is a UserError.
  std::string replace_by_grapheme(std::string_view text, size_t most = SIZE_MAX) const;

 private:
  bool whole(std::string_view text, std::string_view* replacement) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace fathom
