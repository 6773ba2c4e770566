// A document as tokens, each learned or not.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"
#include "train/document.h"

namespace fathom {

// In 32 bits: an id, and in the highest bit that it is context only, never a target.
inline constexpr uint32_t kNotLearned = 0x80000000u;
inline int32_t token_id(uint32_t token) {
  return static_cast<int32_t>(token & ~kNotLearned);
}
inline bool is_learned(uint32_t token) {
  return (token & kNotLearned) == 0;
}

// BOS where the tokenizer adds one and EOS where it has one stand around a document (a conversation has them
// from its template). Special tokens written in a plain text stay text. Where prompt and answer share a
// token, it is the answer's.
std::vector<uint32_t> encode_document(const Tokenizer& tokenizer, const Document& document);

// A name for what a tokenizer does: its vocabulary, special tokens, template, and its way with `sample`.
std::string tokenizer_hash(const Tokenizer& tokenizer, std::string_view sample);

}  // namespace fathom
