#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {

UnigramModel::UnigramModel(Vocabulary vocabulary, UnigramOptions options)
    : TokenModel(std::move(vocabulary)), options_(std::move(options)) {
  double worst = std::numeric_limits<double>::infinity();
  best_score_ = -worst;
  byte_fallback_ =
      std::all_of(options_.byte_ids.begin(), options_.byte_ids.end(), [](int32_t id) { return id >= 0; });
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    if (!vocabulary_.has(id) || !options_.in_text[id]) continue;
    trie_.add(vocabulary_.text(id), id);
    if (options_.user_defined[id]) continue;
    require(options_.scores[id] == options_.scores[id], "tokenizer: the score of token {} is not a number",
            id);
    worst = std::min(worst, options_.scores[id]);
    best_score_ = std::max(best_score_, options_.scores[id]);
  }
  constexpr double kUnknownPenalty = 10;  // SentencePiece's
  unknown_score_ =
      options_.double_sums ? worst - kUnknownPenalty : static_cast<float>(worst - kUnknownPenalty);
}

void UnigramModel::search(std::string_view piece, std::vector<Node>& nodes) const {
  nodes.assign(piece.size() + 1, {});
  nodes[0].start = 0;
  for (uint32_t at = 0; at < piece.size();) {
    const uint32_t char_size = decode_utf8(piece, at).size;
    const double score_here = nodes[at].score;
    bool has_single = false;
    const auto offer = [&](size_t length, int32_t id, double score) {
      Node& node = nodes[at + length];
      const double candidate = score + score_here;
      if (node.start == UINT32_MAX || candidate > node.score) node = {id, at, sum(score, score_here)};
    };
    trie_.prefixes(piece, at, [&](size_t length, int32_t id) {
      const double score =
          options_.user_defined[id] ? static_cast<double>(length) * best_score_ - 0.1 : options_.scores[id];
      offer(length, id, score);
      has_single = has_single || length == char_size;
    });
    if (!has_single) offer(char_size, -1, unknown_score_);
    at += char_size;
  }
}

void UnigramModel::encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  std::vector<Node> nodes;
  search(piece, nodes);
  const size_t start = out.size();
  for (auto end = static_cast<uint32_t>(piece.size()); end > 0; end = nodes[end].start) {
    if (nodes[end].id >= 0) {
      out.push_back(nodes[end].id);
    } else if (byte_fallback_) {
      std::string bytes(piece.substr(nodes[end].start, end - nodes[end].start));
      if (scratch.stand_ins) bytes = without_stand_ins(bytes);
      for (size_t i = bytes.size(); i-- > 0;)
        out.push_back(options_.byte_ids[static_cast<uint8_t>(bytes[i])]);
    } else if (options_.unk >= 0) {
      const bool in_a_row = options_.fuse_unk && out.size() > start && out.back() == options_.unk;
      if (!in_a_row) out.push_back(options_.unk);
    }
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(start), out.end());
}

}  // namespace fathom
