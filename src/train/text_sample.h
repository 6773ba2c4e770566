// Sequences of tokens from all over a file, to measure on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/document.h"

namespace fathom {

// About `tokens` tokens in sequences of `window` at most, none across documents: from documents (or, of long
// ones, pieces) at even distances over the whole file, then from the next windows of the same. The same file
// gives the same sequences. Fewer where the file holds fewer. A file that cannot be read is a UserError.
std::vector<std::vector<int32_t>> sample_sequences(const std::string& path, const Tokenizer& tokenizer,
                                                   const DocumentOptions& options, int64_t tokens,
                                                   int64_t window);

}  // namespace fathom
