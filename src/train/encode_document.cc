#include "train/encode_document.h"

#include <algorithm>

#include "base/sha256.h"

namespace fathom {
namespace {

// A document longer than this is encoded in pieces that end with a line: encoding takes memory many times the
// text's.
constexpr size_t kPieceBytes = size_t{1} << 20;

std::vector<int32_t> encode_long(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options) {
  std::vector<int32_t> ids;
  std::vector<TextRange> literal(options.literal.begin(), options.literal.end());
  while (!text.empty()) {
    options.literal = literal;
    size_t size = std::min(text.size(), kPieceBytes);
    if (size < text.size()) {
      const size_t line_end = text.rfind('\n', size - 1);
      if (line_end != std::string_view::npos) size = line_end + 1;
      while (size < text.size() && (text[size] & 0xC0) == 0x80) ++size;  // not inside a character
    }
    const std::vector<int32_t> piece = tokenizer.encode(text.substr(0, size), options);
    ids.insert(ids.end(), piece.begin(), piece.end());
    text.remove_prefix(size);
    for (TextRange& range : literal)
      range = {range.begin - std::min(range.begin, size), range.end - std::min(range.end, size)};
  }
  return ids;
}

// How many tokens of `whole` are the text's first `bytes`: those that the prefix alone gives too.
size_t tokens_of_prefix(const Tokenizer& tokenizer, std::string_view text, size_t bytes,
                        EncodeOptions options, const std::vector<int32_t>& whole) {
  if (bytes >= text.size()) return whole.size();
  const std::vector<int32_t> prefix = encode_long(tokenizer, text.substr(0, bytes), options);
  const size_t limit = std::min(prefix.size(), whole.size());
  return static_cast<size_t>(
      std::mismatch(prefix.begin(), prefix.begin() + static_cast<ptrdiff_t>(limit), whole.begin()).first -
      prefix.begin());
}

}  // namespace

std::vector<uint32_t> encode_document(const Tokenizer& tokenizer, const Document& document) {
  const EncodeOptions options{.add_special = false,
                              .parse_special = document.rendered,
                              .literal = document.contents,
                              .marks = document.marks};
  const std::vector<int32_t> ids = encode_long(tokenizer, document.text, options);
  std::vector<uint32_t> tokens;
  tokens.reserve(ids.size() + 2);
  const bool wrap = !document.rendered;
  if (wrap && tokenizer.adds_bos() && tokenizer.bos() >= 0)
    tokens.push_back(static_cast<uint32_t>(tokenizer.bos()) | kNotLearned);
  const size_t first = tokens.size();
  for (int32_t id : ids) tokens.push_back(static_cast<uint32_t>(id) | (document.learn_all ? 0 : kNotLearned));
  for (const TextRange& span : document.learned) {
    const size_t begin = tokens_of_prefix(tokenizer, document.text, span.begin, options, ids);
    const size_t end = tokens_of_prefix(tokenizer, document.text, span.end, options, ids);
    for (size_t i = begin; i < end; ++i) tokens[first + i] &= ~kNotLearned;
  }
  if (wrap && tokenizer.eos() >= 0) tokens.push_back(static_cast<uint32_t>(tokenizer.eos()));
  return tokens;
}

std::string tokenizer_hash(const Tokenizer& tokenizer, std::string_view sample) {
  Sha256 hash;
  const auto add_number = [&](int64_t value) { hash.add(std::to_string(value) + ";"); };
  hash.add(tokenizer.kind() + ";");
  for (int64_t value :
       {tokenizer.vocab_size(), tokenizer.bos(), tokenizer.eos(), int32_t{tokenizer.adds_bos()}})
    add_number(value);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string token = tokenizer.token(id);
    add_number(static_cast<int64_t>(token.size()));
    hash.add(token);
  }
  hash.add(tokenizer.chat_template());
  for (int32_t id : tokenizer.encode(sample)) add_number(id);
  return hash.hex();
}

}  // namespace fathom
