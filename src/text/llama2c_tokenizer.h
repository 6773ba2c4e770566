// llama2.c's tokenizer.bin: int32 longest token; for each token a float score, an int32 length and the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace fathom {

// `vocab_size` -1: as many tokens as the file holds.
std::shared_ptr<const Tokenizer> llama2c_tokenizer(std::string_view bytes, int64_t vocab_size,
                                                   const std::string& where);

}  // namespace fathom
