// The names that GGUF files give to ways of cutting words (tokenizer.ggml.pre), and what each means.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/pre_tokenizer.h"

namespace fathom {

struct GgufPreType {
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
  bool raw_text =
      false;  // tokens are text with '▁' for spaces and "<0x0A>" for bytes, not GPT-2's spelling of bytes
  bool whole_newlines = false;
};

// Adds the cuts of the type `name` to `out`; a name that is not known is a UserError.
GgufPreType gguf_pre_type(std::string_view name, PreTokenizer& out);

// For exporting. The cuts of a known type as patterns; and the type that has just these cuts, or "".
std::vector<std::string> gguf_pre_cuts(std::string_view name);
bool gguf_pre_ignores_merges(std::string_view name);
std::string_view gguf_pre_name(const std::vector<std::string>& cuts, bool ignore_merges);
extern const char* const kGpt2Cut;  // GPT-2's pattern

}  // namespace fathom
