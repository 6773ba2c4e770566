// A vocabulary written the way other tools expect it.
#pragma once

#include <string>
#include <vector>

#include "io/gguf.h"

namespace fathom {

// The tokenizer.ggml.* metadata of a GGUF file for the tokenizer that load_tokenizer(source) reads (a Hugging
// Face folder or one tokenizer file). The vocabulary is padded to `vocab` tokens. A pre-tokenizer that GGUF
// has no name for is a UserError.
std::vector<GgufKeyValue> vocab_to_gguf(const std::string& source, int64_t vocab);

// Tokenizer files of a Hugging Face folder, in `target`: copied where `source` is such a folder, a
// tokenizer.json or a tokenizer.model; made from the vocabulary where it is a GGUF file or a llama2.c
// tokenizer.
void vocab_to_hf(const std::string& source, int64_t vocab, const std::string& target);

}  // namespace fathom
