// What kind of word a token belongs to, guessed from English word lists, endings and the word before: enough
// to average over, and wrong for many single words. It is no tagger, and other languages end up in kOther.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

enum class TokenClass : uint8_t {
  kBos,          // BOS and every other special token
  kFunction,     // articles, pronouns, conjunctions, auxiliaries
  kPreposition,  // "to" among them
  kNoun,         // listed, by ending, a name, or after an article, a preposition or a possessive
  kVerb,         // listed, by ending, or after a pronoun or an auxiliary
  kNumber,
  kPunctuation,  // white space, too
  kCode,         // words with marks that prose does not have: _ { } = ; ( straight after a letter
  kOther,        // adjectives, adverbs, unknown words
};
inline constexpr size_t kTokenClasses = 9;
std::string_view name_of(TokenClass token_class);

// pieces: the text of each token; special: which of them are special tokens. The pieces of a word share its
// class.
std::vector<TokenClass> token_classes(std::span<const std::string> pieces, std::span<const uint8_t> special);

}  // namespace fathom
