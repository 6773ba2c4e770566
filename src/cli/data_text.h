// The text that --data names: several files with weights, text or JSONL.
#pragma once

#include "train/document.h"

namespace fathom {

struct DataText {
  std::string path;
  int64_t tokens = 0;                           // the file's share, by its weight
  std::vector<std::vector<int32_t>> sequences;  // these tokens; fewer where the file holds fewer
};

// `entries`: FILE or FILE:WEIGHT, a weight of 1 where none is given. The files together give about `tokens`
// tokens, in sequences of `window` at most from all over each file (train/text_sample.h).
std::vector<DataText> read_data(const std::vector<std::string>& entries, const Tokenizer& tokenizer,
                                const DocumentOptions& options, int64_t tokens, int64_t window);

}  // namespace fathom
