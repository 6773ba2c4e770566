#include "text/bpe.h"

#include <bit>
#include <cmath>

#include "base/format.h"
#include "text/unicode.h"

namespace fathom {
namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

int hex_value(char c) {
  const size_t at = kHexDigits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

}  // namespace

int byte_of_token(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = hex_value(text[3]), low = hex_value(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::array<int32_t, 256> byte_token_ids(const Vocabulary& vocabulary) {
  std::array<int32_t, 256> ids{};
  std::string text = "<0x00>";
  for (int byte = 0; byte < 256; ++byte) {
    text[3] = kHexDigits[byte >> 4];
    text[4] = kHexDigits[byte & 15];
    ids[byte] = vocabulary.find(text);
  }
  return ids;
}

std::vector<uint32_t> ranks_of_scores(const std::vector<float>& scores) {
  std::vector<float> sorted = scores;
  for (const float score : sorted) require(!std::isnan(score), "tokenizer: a token's score is not a number");
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<uint32_t> ranks(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), scores[i], std::greater<>());
    ranks[i] = static_cast<uint32_t>(at - sorted.begin());
  }
  return ranks;
}

BpeBase::BpeBase(Vocabulary vocabulary, bool byte_level, bool ignore_merges, bool whole_newlines)
    : TokenModel(std::move(vocabulary)),
      byte_level_(byte_level),
      ignore_merges_(ignore_merges),
      whole_newlines_(whole_newlines),
      whole_(std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(vocabulary_.size()))) {}

void BpeBase::allow_word_splits(std::string_view mark) {
  if (ignore_merges_ || vocabulary_.find(mark) < 0) return;
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view text = vocabulary_.text(id);
    for (size_t at = text.find(mark, 1); at != std::string_view::npos; at = text.find(mark, at + 1)) {
      if (at < mark.size() || text.substr(at - mark.size(), mark.size()) != mark) return;
    }
  }
  word_mark_ = mark;
}

void BpeBase::encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  std::string restored;
  if (scratch.stand_ins && byte_level_) {
    restored = without_stand_ins(piece);
    piece = restored;
  }
  while (!word_mark_.empty() && !piece.empty()) {
    size_t words_start = 0;
    while (piece.substr(words_start, word_mark_.size()) == word_mark_) words_start += word_mark_.size();
    const size_t end = piece.find(word_mark_, words_start);
    if (end == std::string_view::npos) break;
    encode_word(piece.substr(0, end), scratch, out);
    piece.remove_prefix(end);
  }
  if (!piece.empty()) encode_word(piece, scratch, out);
}

void BpeBase::encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& out) const {
  const uint64_t hash = hash_bytes(word);
  const int32_t id = vocabulary_.find(word, hash);
  if (id >= 0) {
    const bool newlines = whole_newlines_ && word.find_first_not_of('\n') == std::string_view::npos;
    if (ignore_merges_ || newlines || whole_[id].load(std::memory_order_relaxed) == 1)
      return out.push_back(id);
  }
  const bool remembered = word.size() <= PieceCache::kLongestPiece;
  if (remembered && scratch.cache.find(word, hash, out)) return;
  const size_t start = out.size();
  merge(word, scratch, out);
  if (id >= 0 && whole_[id].load(std::memory_order_relaxed) == 0) {
    const bool whole = out.size() == start + 1 && out[start] == id;
    whole_[id].store(whole ? 1 : 2, std::memory_order_relaxed);
    if (whole) return;
  }
  if (remembered) scratch.cache.add(word, hash, out.data() + start, out.size() - start);
}

MergeTable::MergeTable(size_t merges) : slots_(std::bit_ceil(merges * 2 + 16)) {}

namespace {
uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
size_t pair_hash(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ key >> 32;
}
}  // namespace

void MergeTable::set(int32_t left, int32_t right, BpeMerge merge) {
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  size_t at = pair_hash(key) & mask;
  while (slots_[at].key != UINT64_MAX && slots_[at].key != key) at = (at + 1) & mask;
  slots_[at] = {key, merge};
}

BpeMerge MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = slots_.size() - 1;
  for (size_t at = pair_hash(key) & mask; slots_[at].key != UINT64_MAX; at = (at + 1) & mask) {
    if (slots_[at].key == key) return slots_[at].merge;
  }
  return {};
}

BpeModel::BpeModel(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
    : BpeBase(std::move(vocabulary), options.byte_level, options.ignore_merges, options.whole_newlines),
      merges_(std::move(merges)),
      options_(options) {
  if (options_.byte_level) {
    for (int byte = 0; byte < 256; ++byte) {
      const char text = static_cast<char>(byte);
      byte_ids_[byte] = vocabulary_.find(std::string_view(&text, 1));
    }
  } else {
    byte_ids_ = byte_token_ids(vocabulary_);
    allow_word_splits("\u2581");
  }
}

void BpeModel::split(std::string_view piece, ModelScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  if (options_.byte_level) {
    for (uint32_t i = 0; i < piece.size(); ++i) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(piece[i])];
      if (id >= 0) symbols.push_back({id, i, 1});
    }
    return;
  }
  BpeSymbol unknown;  // size 0: none
  const auto flush = [&] {
    if (unknown.size > 0) symbols.push_back(unknown);
    unknown.size = 0;
  };
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char c = decode_utf8(piece, at);
    const BpeSymbol here{vocabulary_.find(piece.substr(at, c.size)), static_cast<uint32_t>(at), c.size};
    at += c.size;
    if (here.id >= 0) {
      flush();
      symbols.push_back(here);
      continue;
    }
    const int stand_in = scratch.stand_ins ? stand_in_byte(c.value) : -1;
    bool all_bytes = options_.byte_fallback;
    for (uint32_t i = 0; i < c.size && stand_in < 0; ++i) {
      all_bytes = all_bytes && byte_ids_[static_cast<uint8_t>(piece[here.begin + i])] >= 0;
    }
    if (all_bytes && (stand_in < 0 || byte_ids_[stand_in] >= 0)) {
      // No flush: the reference leaves a pending unknown where it is, after these bytes.
      if (stand_in >= 0) {
        symbols.push_back({byte_ids_[stand_in], here.begin, c.size});
        continue;
      }
      for (uint32_t i = 0; i < c.size; ++i) {
        symbols.push_back({byte_ids_[static_cast<uint8_t>(piece[here.begin + i])], here.begin + i, 1});
      }
    } else if (options_.unk >= 0) {
      if (!options_.fuse_unk) flush();
      if (unknown.size == 0) unknown = {options_.unk, here.begin, 0};
      unknown.size += here.size;
    }
  }
  flush();
}

void BpeModel::merge(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  auto& symbols = scratch.symbols;
  split(piece, scratch);
  merge_symbols(symbols, scratch, [this](const BpeSymbol& left, const BpeSymbol& right) {
    return merges_.find(left.id, right.id);
  });
  for (const BpeSymbol& symbol : symbols) out.push_back(symbol.id);
}

RankedBpeModel::RankedBpeModel(Vocabulary vocabulary, RankedBpeOptions options)
    : BpeBase(std::move(vocabulary), options.byte_level, options.ignore_merges, false),
      options_(std::move(options)),
      split_again_(static_cast<size_t>(vocabulary_.size())) {
  for (const int32_t id : options_.split_again) split_again_[id] = true;
  for (const int32_t id : options_.whole_only) whole_only_.add(vocabulary_.text(id), id);
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    if (options_.ranks[id] == BpeMerge::kNone) never_whole(id);
  }
  const std::string_view mark = options_.fallback_first ? " " : "\u2581";
  if (!options_.byte_level && whole_only_.empty() && usable(mark) >= 0) allow_word_splits(mark);
}

int32_t RankedBpeModel::usable(std::string_view text) const {
  if (text.size() > vocabulary_.longest()) return -1;
  const int32_t id = vocabulary_.find(text);
  return id >= 0 && options_.ranks[id] != BpeMerge::kNone ? id : -1;
}

void RankedBpeModel::split(std::string_view piece, ModelScratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char c = options_.byte_level ? Utf8Char{0, 1, true} : decode_utf8(piece, at);
    const BpeSymbol here{usable(piece.substr(at, c.size)), static_cast<uint32_t>(at), c.size};
    at += c.size;
    const int stand_in = scratch.stand_ins && !options_.byte_level ? stand_in_byte(c.value) : -1;
    if (here.id >= 0 || !options_.fallback_first) {
      symbols.push_back(here);
    } else if (stand_in >= 0) {
      symbols.push_back({-2 - stand_in, here.begin, c.size});
    } else {
      for (uint32_t i = here.begin; i < at; ++i)
        symbols.push_back({-2 - static_cast<uint8_t>(piece[i]), i, 1});
    }
  }
}

void RankedBpeModel::give_out(const BpeSymbol& symbol, std::string_view piece, const Halves& halves,
                              bool stand_ins, std::vector<int32_t>& out) const {
  if (symbol.id >= 0) {
    const auto found = split_again_[symbol.id] ? halves.find(symbol.id) : halves.end();
    if (found == halves.end()) return out.push_back(symbol.id);
    // The halves' places may be another occurrence's, but their texts are this one's.
    give_out(found->second.first, piece, halves, stand_ins, out);
    return give_out(found->second.second, piece, halves, stand_ins, out);
  }
  if (symbol.id <= -2) return out.push_back(options_.byte_ids[-2 - symbol.id]);
  std::string bytes(piece.substr(symbol.begin, symbol.size));
  if (stand_ins) bytes = without_stand_ins(bytes);
  bool all = true;
  for (const char byte : bytes) all = all && options_.byte_ids[static_cast<uint8_t>(byte)] >= 0;
  if (all) {
    for (const char byte : bytes) out.push_back(options_.byte_ids[static_cast<uint8_t>(byte)]);
  } else if (options_.unk >= 0 && (out.empty() || out.back() != options_.unk)) {
    out.push_back(options_.unk);
  }
}

void RankedBpeModel::merge_between(std::string_view piece, ModelScratch& scratch,
                                   std::vector<int32_t>& out) const {
  auto& symbols = scratch.symbols;
  split(piece, scratch);
  Halves halves;
  const auto find = [&](const BpeSymbol& left, const BpeSymbol& right) -> BpeMerge {
    if (left.id <= -2 || right.id <= -2) return {};
    const int32_t id = usable(piece.substr(left.begin, left.size + right.size));
    if (id < 0) return {};
    if (split_again_[id]) halves[id] = {left, right};  // the last pair considered counts
    return {options_.ranks[id], id};
  };
  merge_symbols(symbols, scratch, find);
  for (const BpeSymbol& symbol : symbols) give_out(symbol, piece, halves, scratch.stand_ins, out);
}

void RankedBpeModel::merge(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  if (whole_only_.empty()) return merge_between(piece, scratch, out);
  size_t start = 0;
  for (size_t at = 0; at < piece.size();) {
    int32_t id = -1;
    const size_t length = whole_only_.longest(piece, at, &id);
    if (length == 0) {
      at += decode_utf8(piece, at).size;
      continue;
    }
    if (at > start) merge_between(piece.substr(start, at - start), scratch, out);
    out.push_back(id);
    start = at += length;
  }
  if (start < piece.size()) merge_between(piece.substr(start), scratch, out);
}

}  // namespace fathom
