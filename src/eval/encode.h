// From texts to the tokens that are scored, as lm-evaluation-harness encodes them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace fathom {

// The log-probabilities of the last `scored` tokens are asked for, given those before. The last token is
// never fed: nothing after it is predicted.
struct TokenRequest {
  std::vector<int32_t> tokens;
  int64_t scored = 0;
  int64_t cut = 0;  // tokens dropped from the left, because the context is full
};

class RequestEncoder {
 public:
  // `context`: rows that the model may see. A tokenizer with neither BOS nor EOS is a UserError: nothing
  // could stand before a text's first token.
  RequestEncoder(const Tokenizer& tokenizer, int64_t context);

  // White space at the end of the context moves to the continuation, and the continuation is what
  // encode(both) has after as many tokens as encode(context). An empty context is the prefix token. A
  // continuation that adds no tokens, or does not fit the context, is a UserError.
  TokenRequest pair(std::string_view context, std::string_view continuation) const;

  // Windows of at most `context` rows that score each token once; every window but the first sees at least
  // one token before those it scores.
  std::vector<TokenRequest> rolling(std::string_view text) const;

  // Nothing is scored: up to `max_tokens` will be generated after it.
  TokenRequest prompt(std::string_view text, int64_t max_tokens) const;

 private:
  std::vector<int32_t> encode(std::string_view text) const;
  TokenRequest fitted(std::vector<int32_t> tokens, int64_t scored) const;

  const Tokenizer& tokenizer_;
  int64_t context_;
  int32_t prefix_;
  std::string prefix_text_;
};

}  // namespace fathom
