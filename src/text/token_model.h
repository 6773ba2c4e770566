// The middle of a tokenizer: a piece of text (a word, or a whole text) to ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace fathom {

// The ids of pieces met before in the same text. One per call of encode(): no lock, no unbounded growth.
class PieceCache {
 public:
  static constexpr size_t kLongestPiece = 64;

  bool find(std::string_view piece, uint64_t hash, std::vector<int32_t>& out) const;  // appends the ids
  void add(std::string_view piece, uint64_t hash, const int32_t* ids, size_t count);

 private:
  static constexpr size_t kMaxEntries = size_t{1} << 17;
  struct Entry {
    uint32_t hash = 0;
    uint32_t key = 0, key_size = 0;  // in keys_
    uint32_t ids = 0, id_count = 0;  // in ids_; id_count 0: an empty slot
  };
  void grow();

  std::vector<Entry> slots_;
  size_t used_ = 0;
  std::string keys_;
  std::vector<int32_t> ids_;
};

struct BpeSymbol {
  int32_t id = -1;               // a token; -1: text that is no token; below that: a model's own marks
  uint32_t begin = 0, size = 0;  // its bytes in the piece
};

struct BpeCandidate {
  uint32_t rank = 0, at = 0;
  uint32_t size = 0;  // bytes of the two together: a place's text only grows, so this tells a stale candidate
  int32_t id = -1;
};

// Memory that one call of encode() uses again for every piece.
struct ModelScratch {
  bool stand_ins = false;  // the text holds stand-ins for bytes that are no UTF-8 (unicode.h)
  PieceCache cache;
  std::vector<BpeSymbol> symbols;
  std::vector<BpeCandidate> candidates;
  std::vector<int32_t> previous, next;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const = 0;

  // The tokens: as bytes where the vocabulary is byte-level, else as they are written.
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  Vocabulary vocabulary_;
};

}  // namespace fathom
