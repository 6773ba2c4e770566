// Hugging Face tokenizers: tokenizer.json, or GPT-2's older vocab.json with merges.txt; tokenizer_config.json
// beside.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace fathom {

class MergeTable;
class Vocabulary;

// What tokenizer_config.json adds ("" : there is none).
struct HfConfigText {
  std::string tokenizer_config;
  std::string chat_template;  // chat_template.jinja, which goes before the config's
};

// From the files' texts; `where` starts each message.
std::shared_ptr<const Tokenizer> hf_tokenizer(std::string_view tokenizer_json, const HfConfigText& config,
                                              const std::string& where);
std::shared_ptr<const Tokenizer> gpt2_tokenizer(std::string_view vocab_json, std::string_view merges_txt,
                                                const HfConfigText& config, const std::string& where);

// Resolves merges of two token texts each, the first with rank 0, against the vocabulary. A merge whose parts
// or result the vocabulary lacks is a UserError.
MergeTable resolve_merges(const std::vector<std::pair<std::string, std::string>>& merges,
                          const Vocabulary& vocabulary, bool byte_level, const std::string& where);

}  // namespace fathom
