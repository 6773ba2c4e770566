// Replies of /v1/completions.
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/reply_format.h"
#include "serve/token_text.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The lists of the reply's `logprobs`, token by token.
class LogProbLists {
 public:
  LogProbLists(const Tokenizer& tokenizer, int64_t characters)
      : tokenizer_(tokenizer), characters_(characters) {
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
      lists_[name] = OrderedJson::array();
  }

  // `logprob`: none for a text's first token, which follows nothing. `bytes`: of the text, that it stands
  // for.
  void add(int32_t id, std::optional<float> logprob, const std::vector<TokenLogProb>& top,
           std::string_view bytes) {
    lists_["tokens"].push_back(token_text(tokenizer_, id));
    lists_["token_logprobs"].push_back(logprob ? OrderedJson(written_logprob(*logprob)) : OrderedJson());
    lists_["top_logprobs"].push_back(logprob ? top_of(id, *logprob, top) : OrderedJson());
    lists_["text_offset"].push_back(characters_);
    characters_ += characters_in(bytes);
  }
  OrderedJson take() { return std::move(lists_); }

 private:
  // The most likely tokens, and the one that came. Of tokens that are written alike, all but the first have
  // their number for a key.
  OrderedJson top_of(int32_t id, float logprob, const std::vector<TokenLogProb>& top) const {
    OrderedJson map = OrderedJson::object();
    bool has_own = false;
    const auto put = [&](int32_t token, float value) {
      std::string key = token_text(tokenizer_, token);
      if (map.contains(key)) key = fmt::format("token_id:{}", token);
      map[key] = written_logprob(value);
      has_own = has_own || token == id;
    };
    for (const TokenLogProb& each : top) put(each.id, each.logprob);
    if (!has_own) put(id, logprob);
    return map;
  }

  const Tokenizer& tokenizer_;
  int64_t characters_;
  OrderedJson lists_;
};

class CompletionReplyFormat final : public ReplyFormat {
 public:
  using ReplyFormat::ReplyFormat;

  std::string opening(int64_t) const override { return ""; }

 protected:
  const char* object(bool) const override { return "text_completion"; }

  void write_choice(OrderedJson& choice, const AnswerPart& part, bool chunk) const override {
    choice["text"] = part.text;
    choice["logprobs"] = nullptr;
    if (head_.log_probs < 0 || (chunk && part.tokens.empty() && !part.prompt)) return;
    LogProbLists lists(tokenizer(), part.characters);
    if (part.prompt && part.prompt_log_probs) add_prompt(lists, part);
    for (const Token& token : part.tokens) lists.add(token.id, token.logprob, token.top, token.bytes);
    choice["logprobs"] = lists.take();
  }

 private:
  void add_prompt(LogProbLists& lists, const AnswerPart& part) const {
    const LogProbs& scores = *part.prompt_log_probs;
    static const std::vector<TokenLogProb> kNone;
    bool at_start = true;  // the tokenizer's rule for a text's beginning holds
    for (size_t i = 0; i < part.prompt->size(); ++i) {
      const int32_t id = (*part.prompt)[i];
      const std::optional<float> own = i == 0 ? std::nullopt : std::optional(scores.logprobs[i]);
      lists.add(id, own, scores.top.empty() ? kNone : scores.top[i],
                at_start ? tokenizer().decode({id}) : tokenizer().piece(id));
      at_start = at_start && tokenizer().is_special(id);
    }
  }
};

}  // namespace

std::unique_ptr<ReplyFormat> completion_format(ReplyHead head, const ServedModel& served) {
  return std::make_unique<CompletionReplyFormat>(std::move(head), served);
}

}  // namespace fathom
