// A vocabulary as plain lists, the way a GGUF file states it: what exporting needs and no tokenizer keeps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

// tokenizer.ggml.token_type
enum class TokenKind : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct VocabTable {
  bool byte_level =
      false;        // "gpt2": merges over GPT-2's spelling of bytes; otherwise "llama": merges by score
  std::string pre;  // byte_level: the name of how words are cut
  std::vector<std::string> tokens;  // by id
  std::vector<TokenKind> kinds;     // by id
  std::vector<float> scores;        // by id; llama only
  std::vector<std::string> merges;  // "a b", first rank first; byte_level only
  int32_t bos = -1, eos = -1, unknown = -1;
  bool adds_bos = false, adds_eos = false;
  bool adds_space_prefix = true;  // llama only
  bool prefix_after_special =
      true;  // and the prefix comes again after a token found in the text, as GGUF's readers do it
  std::string chat_template;
};

// From whatever load_tokenizer(source) reads. What cannot be stated so (a Unigram model, a pre-tokenizer
// without a name, a tiktoken file, which has no merges) is a UserError. `vocab`: as in load_tokenizer.
VocabTable read_vocab_table(const std::string& source, int64_t vocab);

}  // namespace fathom
