// A vocabulary as JSON masks look at it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/json_machine.h"
#include "serve/token_bits.h"
#include "serve/token_trie.h"
#include "text/tokenizer.h"

namespace fathom {

class JsonVocabulary {
 public:
  // As JsonMasks.
  JsonVocabulary(const Tokenizer& tokenizer, std::vector<int32_t> end_ids);

  size_t size() const { return pieces_.size(); }
  const std::string& piece(int32_t id) const;  // "": never a part of a text
  bool ends(int32_t id) const;
  // The tokens that may come next. Where many ways would have to be followed through many tokens, some are
  // left out and others stay: a mask takes most_tries() tries, and then one way through the tokens that are
  // left.
  TokenBits allowed(JsonMachine& machine) const;
  uint64_t most_tries() const;
  size_t trie_nodes() const { return all_.nodes().size(); }

 private:
  std::vector<std::string> pieces_;
  std::vector<int32_t> end_ids_;
  TokenTrie all_, marked_;  // marked: tokens with a quote or a backslash
  // By number of characters, ascending: tokens of at most that many characters that strings show as they are;
  // the last one may be unfinished.
  std::vector<std::pair<size_t, TokenBits>> plain_;
};

}  // namespace fathom
