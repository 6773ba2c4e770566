#include "cli/data_text.h"

#include <algorithm>

#include "train/config.h"
#include "train/text_sample.h"

namespace fathom {

std::vector<DataText> read_data(const std::vector<std::string>& entries, const Tokenizer& tokenizer,
                                const DocumentOptions& options, int64_t tokens, int64_t window) {
  std::vector<WeightedPath> files;
  double sum = 0;
  for (const std::string& entry : entries) {
    WeightedPath& file = files.emplace_back(parse_data(entry));
    if (file.weight == 0) file.weight = 1;
    sum += file.weight;
  }
  std::vector<DataText> texts;
  for (const WeightedPath& file : files) {
    const double share = file.weight / sum * static_cast<double>(tokens);
    DataText& text = texts.emplace_back();
    text.path = file.path;
    text.tokens = std::max<int64_t>(1, static_cast<int64_t>(share));
    text.sequences = sample_sequences(file.path, tokenizer, options, text.tokens, window);
  }
  return texts;
}

}  // namespace fathom
