#include "eval/encode.h"

#include <algorithm>

#include "base/format.h"
#include "eval/python_text.h"

namespace fathom {

RequestEncoder::RequestEncoder(const Tokenizer& tokenizer, int64_t context)
    : tokenizer_(tokenizer),
      context_(context),
      prefix_(tokenizer.bos() >= 0 ? tokenizer.bos() : tokenizer.eos()) {
  if (prefix_ < 0) fail("eval needs a tokenizer with a BOS or an EOS token, this one has neither");
  prefix_text_ = tokenizer.piece(prefix_, true);
}

// With the special tokens that the tokenizer adds, unless the text brings the first of them itself.
std::vector<int32_t> RequestEncoder::encode(std::string_view text) const {
  const bool own = !prefix_text_.empty() && text.starts_with(prefix_text_);
  return tokenizer_.encode(text, {.add_special = !own});
}

TokenRequest RequestEncoder::fitted(std::vector<int32_t> tokens, int64_t scored) const {
  TokenRequest request;
  request.scored = scored;
  request.cut = std::max<int64_t>(0, static_cast<int64_t>(tokens.size()) - (context_ + 1));
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(request.cut));
  request.tokens = std::move(tokens);
  return request;
}

TokenRequest RequestEncoder::pair(std::string_view context, std::string_view continuation) const {
  const size_t kept = length_without_trailing_space(context);
  std::vector<int32_t> tokens;
  size_t before = 1;  // tokens of the context
  if (kept == 0) {
    tokens = tokenizer_.encode(std::string(context) + std::string(continuation), {.add_special = false});
    // A text that begins with the prefix token has its context already.
    if (tokens.empty() || tokens.front() != prefix_) tokens.insert(tokens.begin(), prefix_);
  } else {
    tokens = encode(context.substr(0, kept));
    before = tokens.size();
    const std::vector<int32_t> both = encode(std::string(context) + std::string(continuation));
    if (both.size() > before)
      tokens.insert(tokens.end(), both.begin() + static_cast<ptrdiff_t>(before), both.end());
  }
  const auto scored = static_cast<int64_t>(tokens.size() - before);
  if (scored == 0) fail("'{}' adds no tokens to its context", printable(continuation, 60));
  if (scored > context_)
    fail("'{}' has {} tokens, the context {}", printable(continuation, 60), scored, context_);
  return fitted(std::move(tokens), scored);
}

std::vector<TokenRequest> RequestEncoder::rolling(std::string_view text) const {
  std::vector<int32_t> tokens = encode(text);
  const auto total = static_cast<int64_t>(tokens.size());
  tokens.insert(tokens.begin(), prefix_);  // token i of the text is tokens[i + 1], predicted from row i
  std::vector<TokenRequest> windows;
  for (int64_t begin = 0; begin < total; begin += context_) {
    const int64_t end = std::min(begin + context_, total);
    const int64_t first = std::max<int64_t>(0, end - context_);
    windows.push_back({{tokens.begin() + first, tokens.begin() + end + 1}, end - begin, 0});
  }
  return windows;
}

TokenRequest RequestEncoder::prompt(std::string_view text, int64_t max_tokens) const {
  const int64_t most = context_ - max_tokens;
  if (most <= 0)
    fail("the task generates up to {} tokens and the context has only {}: use a longer one", max_tokens,
         context_);
  TokenRequest request;
  request.tokens = encode(text);
  if (request.tokens.empty()) request.tokens.push_back(prefix_);
  request.cut = std::max<int64_t>(0, static_cast<int64_t>(request.tokens.size()) - most);
  request.tokens.erase(request.tokens.begin(), request.tokens.begin() + static_cast<ptrdiff_t>(request.cut));
  return request;
}

}  // namespace fathom
