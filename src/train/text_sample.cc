#include "train/text_sample.h"

#include <algorithm>

#include "train/encode_document.h"

namespace fathom {
namespace {

constexpr size_t kSampledBytes = size_t{1} << 14;  // of a long document: a piece is sampled like a document

// A long plain text in pieces that end with a line, or else with a character.
void add_pieces(Document document, std::vector<Document>& pieces) {
  while (!document.rendered && document.text.size() > 2 * kSampledBytes) {
    size_t size = kSampledBytes;
    const size_t line_end = document.text.rfind('\n', size);
    if (line_end != std::string::npos && line_end > 0) size = line_end;
    while (size < document.text.size() && (document.text[size] & 0xC0) == 0x80) ++size;
    Document piece;
    piece.text = document.text.substr(0, size);
    document.text.erase(0, size);
    pieces.push_back(std::move(piece));
  }
  pieces.push_back(std::move(document));
}

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, const Document& document) {
  std::vector<int32_t> ids;
  for (const uint32_t token : encode_document(tokenizer, document)) ids.push_back(token_id(token));
  return ids;
}

// `count` of the pieces, from all over them.
std::vector<std::vector<int32_t>> spread_pieces(const Tokenizer& tokenizer,
                                                const std::vector<Document>& pieces, size_t count) {
  std::vector<std::vector<int32_t>> encoded;
  for (size_t i = 0; i < count; ++i)
    encoded.push_back(ids_of(tokenizer, pieces[(2 * i + 1) * pieces.size() / (2 * count)]));
  return encoded;
}

}  // namespace

std::vector<std::vector<int32_t>> sample_sequences(const std::string& path, const Tokenizer& tokenizer,
                                                   const DocumentOptions& options, int64_t tokens,
                                                   int64_t window) {
  std::vector<Document> pieces;
  DocumentReader reader(path, tokenizer, options);
  for (Document document; reader.next(document); document = {}) add_pieces(std::move(document), pieces);
  const auto wanted = static_cast<size_t>((tokens + window - 1) / window);
  size_t count = std::min(pieces.size(), std::max<size_t>(1, wanted));
  std::vector<std::vector<int32_t>> encoded = spread_pieces(tokenizer, pieces, count);
  while (count < pieces.size()) {  // documents shorter than a window: more of them
    size_t found = 1;
    for (const std::vector<int32_t>& ids : encoded) found += ids.size();
    if (static_cast<int64_t>(found) > tokens) break;
    count = std::min(pieces.size(), count * static_cast<size_t>(tokens) / found + count / 8 + 1);
    encoded = spread_pieces(tokenizer, pieces, count);
  }
  std::vector<std::vector<int32_t>> sequences;
  int64_t left = tokens;
  for (size_t begin = 0; left > 0; begin += static_cast<size_t>(window)) {
    bool more = false;
    for (size_t i = 0; i < count && left > 0; ++i) {
      if (begin >= encoded[i].size()) continue;
      more = true;
      const auto size =
          std::min({encoded[i].size() - begin, static_cast<size_t>(window), static_cast<size_t>(left)});
      const auto first = encoded[i].begin() + static_cast<ptrdiff_t>(begin);
      sequences.emplace_back(first, first + static_cast<ptrdiff_t>(size));
      left -= static_cast<int64_t>(size);
    }
    if (!more) break;
  }
  return sequences;
}

}  // namespace fathom
