// The two kinds of byte-pair models: one with a list of merges (Hugging Face, GGUF "gpt2"), one where any two
// neighbours join whose bytes together are a token (SentencePiece, tiktoken, llama2.c).
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>

#include "text/bpe_merge.h"
#include "text/byte_trie.h"
#include "text/token_model.h"

namespace fathom {

// What both share: a word that is one token is found by one look-up, other words are remembered within a
// text.
class BpeBase : public TokenModel {
 public:
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;

 protected:
  BpeBase(Vocabulary vocabulary, bool byte_level, bool ignore_merges, bool whole_newlines);

  // Where '▁' never follows another character inside a token, no token spans the place before a '▁': the
  // words between can be merged one by one, with the same result.
  void allow_word_splits(std::string_view mark);
  void never_whole(int32_t id) { whole_[id].store(2, std::memory_order_relaxed); }

  virtual void merge(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const = 0;

  const bool byte_level_;

 private:
  void encode_word(std::string_view word, ModelScratch& scratch, std::vector<int32_t>& out) const;

  const bool ignore_merges_;   // a word that is a token is that token, whatever merging would make of it
  const bool whole_newlines_;  // the same, for words of nothing but line feeds (GGUF "gemma4")
  std::string word_mark_;      // "": no splits
  // By id: 0 not known yet, 1 the token's text encodes to the token alone, 2 it does not.
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

class MergeTable {
 public:
  explicit MergeTable(size_t merges);
  void set(int32_t left, int32_t right, BpeMerge merge);  // the last one set counts
  BpeMerge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = UINT64_MAX;
    BpeMerge merge;
  };
  std::vector<Slot> slots_;
};

struct BpeOptions {
  bool byte_level = false;     // the vocabulary is bytes: a symbol to start from is a byte, else a character
  bool byte_fallback = false;  // a character that is no token becomes its bytes, "<0x0A>"
  bool fuse_unk = false;       // unknown characters in a row are one unknown token
  bool ignore_merges = false;
  bool whole_newlines = false;
  int32_t unk = -1;  // -1: unknown characters are dropped
};

class BpeModel : public BpeBase {
 public:
  BpeModel(Vocabulary vocabulary, MergeTable merges, BpeOptions options);

 private:
  void merge(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;
  void split(std::string_view piece, ModelScratch& scratch) const;

  const MergeTable merges_;
  const BpeOptions options_;
  std::array<int32_t, 256> byte_ids_{};
};

struct RankedBpeOptions {
  bool byte_level = false;      // as above (tiktoken)
  bool fallback_first = false;  // llama2.c: unknown characters become byte tokens before merging, not after
  bool ignore_merges = false;
  int32_t unk = -1;  // unknown characters in a row are one of it, where a byte has no token
  std::array<int32_t, 256> byte_ids{};  // -1: no token for the byte
  std::vector<uint32_t> ranks;          // by id, low joins first; BpeMerge::kNone: not found in text
  std::vector<int32_t>
      split_again;  // ids that may be passed through but not given out (SentencePiece "unused")
  std::vector<int32_t> whole_only;  // ids found before merging and never joined (user-defined)
};

class RankedBpeModel : public BpeBase {
 public:
  RankedBpeModel(Vocabulary vocabulary, RankedBpeOptions options);

 private:
  using Halves =
      std::unordered_map<int32_t, std::pair<BpeSymbol, BpeSymbol>>;  // what a token was joined from
  void merge(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;
  void merge_between(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const;
  void split(std::string_view piece, ModelScratch& scratch) const;
  void give_out(const BpeSymbol& symbol, std::string_view piece, const Halves& halves, bool stand_ins,
                std::vector<int32_t>& out) const;
  int32_t usable(std::string_view text) const;

  const RankedBpeOptions options_;
  std::vector<bool> split_again_;
  ByteTrie whole_only_;
};

// Ranks for scores: the highest score is 0, equal scores are equal. UserError when a score is not a number.
std::vector<uint32_t> ranks_of_scores(const std::vector<float>& scores);

// The id of "<0x0A>" and its 255 siblings, -1 where the vocabulary lacks one.
std::array<int32_t, 256> byte_token_ids(const Vocabulary& vocabulary);
// The byte that a token's text "<0x0A>" names, or -1.
int byte_of_token(std::string_view text);

}  // namespace fathom
