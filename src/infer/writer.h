// One answer as it is written: draws each token from its logits, turns tokens into text that may be shown,
// and says when the answer ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "infer/sampler.h"
#include "infer/stop_strings.h"
#include "model/model.h"
#include "text/utf8_stream.h"

namespace fathom {

// The tokens that end a text: the model's own, the tokenizer's, and those of the vocabulary that end a turn
// of a known chat format.
std::vector<int32_t> end_token_ids(const Model& model);

// Text on its way out: bytes of tokens → whole characters → less what may become a stop string.
class Writer {
 public:
  // Options that make no sense are a UsageError.
  // `mask`: what may come next, or null; it outlives the writer.
  Writer(const Model& model, const AnswerOptions& options, std::span<const int32_t> prompt,
         TokenMask* mask = nullptr);

  struct Written {
    int32_t id = 0;
    std::string text;   // what may be shown now
    std::string bytes;  // of the token alone
    bool ends = false;  // an end token: no part of the text
    // kStop (at an end token, too), or kLength at max_tokens.
    std::optional<FinishReason> finish;
  };
  // Draws the next token from the logits (vocab) that follow history(); they are changed where tokens are
  // forbidden. Logits that no token can be drawn from are a UserError. Writers without a mask may draw in
  // several threads at once, each its own token.
  int32_t draw(std::span<float> logits);
  // The same draw for draw_tokens(), from a row of the pass's logits; nothing where a token may be forbidden,
  // cut or weighed otherwise.
  std::optional<TokenDraw> plain_draw(int32_t row) const;
  // Writes the token that was drawn here, or elsewhere (by a Speculator). Valid until the next call.
  const Written& take(int32_t id);

  // The end of the answer: the text that was held back.
  std::string flush();

  const std::vector<int32_t>& history() const { return history_; }  // the prompt and the answer
  int64_t generated() const { return static_cast<int64_t>(history_.size()) - prompt_tokens_; }

 private:
  std::string show(int32_t id);

  const Tokenizer* tokenizer_;  // null: the answer has no text
  TokenMask* mask_;
  int64_t prompt_tokens_, max_tokens_, min_tokens_;
  std::vector<int32_t> end_ids_, history_;
  Sampler sampler_;
  Utf8Stream utf8_;
  StopStrings stops_;
  bool at_start_;  // nothing but special tokens so far: the tokenizer's rule for a text's beginning holds
  Written written_;
};

}  // namespace fathom
