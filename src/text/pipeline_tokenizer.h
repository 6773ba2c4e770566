// The one tokenizer behind every file format: found tokens, normalizer, pre-tokenizer, model, post-processor,
// decoder.
#pragma once

#include <memory>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"
#include "text/tokenizer.h"

namespace fathom {

struct TokenizerParts {
  std::string kind;
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  bool byte_level = false;                 // the model's vocabulary is bytes, spelt as GPT-2 does in files
  std::map<int32_t, std::string> unspelt;  // byte-level: tokens that spell no bytes, as written
  std::vector<int32_t> before, after;      // ids put around a text
  Decoder decoder;
  std::map<int32_t, std::string>
      shown_as;  // tokens that output shows as another text (SentencePiece's unknown)
  int32_t bos = -1, eos = -1, pad = -1;
};

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<int32_t> encode(std::string_view text, EncodeOptions options) const override;
  std::string piece(int32_t id, bool show_special) const override;
  std::string decode(const std::vector<int32_t>& ids, bool show_special) const override;
  int32_t vocab_size() const override;
  int32_t id_of(std::string_view token) const override;
  std::string token(int32_t id) const override;
  bool is_special(int32_t id) const override;
  int32_t bos() const override { return parts_.bos; }
  int32_t eos() const override { return parts_.eos; }
  int32_t pad() const override { return parts_.pad; }
  bool adds_bos() const override;
  bool adds_eos() const override;
  std::string kind() const override { return parts_.kind; }

 private:
  void encode_segment(std::string_view text, bool at_start, const EncodeOptions& options,
                      ModelScratch& scratch, std::vector<int32_t>& out) const;
  void encode_normalized(std::string_view text, bool at_start, const EncodeOptions& options,
                         ModelScratch& scratch, std::vector<int32_t>& out) const;
  void encode_pieces(std::string_view text, bool at_start, ModelScratch& scratch,
                     std::vector<int32_t>& out) const;

  TokenizerParts parts_;
};

}  // namespace fathom
