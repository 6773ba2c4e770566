// The unigram model: of all ways to cut a text into tokens, the one whose scores add up highest.
#pragma once

#include <array>

#include "text/byte_trie.h"
#include "text/token_model.h"

namespace fathom {

struct UnigramOptions {
  bool double_sums =
      false;         // Hugging Face adds scores in 64 bits, SentencePiece in 32: ties fall differently
  int32_t unk = -1;  // an unknown character; several in a row are one
  bool fuse_unk = true;
  std::array<int32_t, 256> byte_ids{};  // all >= 0: unknown characters become bytes
  std::vector<double> scores;           // by id
  std::vector<bool> in_text;            // by id: found in text (not control, byte, unknown or unused tokens)
  std::vector<bool> user_defined;       // by id: always chosen where it fits
};

class UnigramModel : public TokenModel {
 public:
  UnigramModel(Vocabulary vocabulary, UnigramOptions options);
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;

 private:
  struct Node {
    int32_t id = -1;
    uint32_t start = UINT32_MAX;  // of the token that ends here; UINT32_MAX: not reached
    double score = 0;
  };
  void search(std::string_view piece, std::vector<Node>& nodes) const;
  double sum(double a, double b) const { return options_.double_sums ? a + b : static_cast<float>(a + b); }

  const UnigramOptions options_;
  bool byte_fallback_ = false;
  double unknown_score_ = 0, best_score_ = 0;
  ByteTrie trie_;
};

}  // namespace fathom
