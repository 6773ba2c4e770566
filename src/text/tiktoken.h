// tiktoken rank files: a line per token, its bytes in base64 and its rank. The file holds neither the pattern
// that cuts words nor the special tokens; those are the program's, here Llama-3's.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace fathom {

struct TiktokenRules {
  std::string pattern;
  std::vector<std::string> special;  // numbered after the ranks
  std::string bos, eos;              // names among them; "": none
};

TiktokenRules llama3_rules();

// Whether the text looks like a rank file.
bool is_tiktoken(std::string_view text);

std::shared_ptr<const Tokenizer> tiktoken_tokenizer(std::string_view ranks, const TiktokenRules& rules,
                                                    const std::string& where);

// A vocab.json whose ids are ranks (Qwen's, where merges.txt is missing), as the text of a rank file.
std::string ranks_of_vocab_json(std::string_view vocab_json, const std::string& where);

}  // namespace fathom
