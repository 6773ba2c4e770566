// Tokens that are found in a text before anything else happens to it: "<|im_start|>", and what users added.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"

namespace fathom {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // control: hidden in output, and in a text only where special tokens are parsed
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // … after it
  bool normalized = false;   // looked for in the normalised text, as the normalizer writes it
};

// A stretch of a text: an added token's id, or -1 and the text itself.
struct Segment {
  int32_t id = -1;
  std::string_view text;
};

class AddedTokens {
 public:
  // A second token of the same id or content must be the same in all: UserError.
  void add(AddedToken token);
  void prepare(const Normalizer& normalizer);  // once, after the last add()

  // Cuts `text` at the tokens looked for before (false) or after (true) normalisation. `options.literal` are
  // parts of this text.
  void split(std::string_view text, bool normalized, const EncodeOptions& options,
             std::vector<Segment>& out) const;
  bool any(bool normalized) const { return !tries_[normalized].empty(); }

  const AddedToken* find(int32_t id) const;
  const AddedToken* find(std::string_view content) const;
  int32_t size() const { return by_id_.empty() ? 0 : by_id_.rbegin()->first + 1; }  // largest id + 1
  const std::map<int32_t, AddedToken>& all() const { return by_id_; }

 private:
  std::map<int32_t, AddedToken> by_id_;
  std::map<std::string, int32_t, std::less<>> by_content_;
  ByteTrie tries_[2];
};

}  // namespace fathom
