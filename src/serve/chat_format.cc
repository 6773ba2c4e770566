// Replies of /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "serve/reply_format.h"
#include "serve/token_text.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson bytes_of(const Tokenizer& tokenizer, int32_t id) {
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : tokenizer.piece(id, true)) bytes.push_back(static_cast<unsigned char>(byte));
  return bytes;
}

OrderedJson entry_of(const Tokenizer& tokenizer, int32_t id, float logprob) {
  OrderedJson entry;
  entry["token"] = token_text(tokenizer, id);
  entry["logprob"] = written_logprob(logprob);
  entry["bytes"] = bytes_of(tokenizer, id);
  return entry;
}

class ChatReplyFormat final : public ReplyFormat {
 public:
  using ReplyFormat::ReplyFormat;

  std::string opening(int64_t index) const override {
    OrderedJson json = envelope(true);
    OrderedJson choice;
    choice["index"] = index;
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = nullptr;
    json["choices"] = OrderedJson::array({std::move(choice)});
    return event_of(json);
  }

 protected:
  const char* object(bool chunk) const override {
    return chunk ? "chat.completion.chunk" : "chat.completion";
  }

  void write_choice(OrderedJson& choice, const AnswerPart& part, bool chunk) const override {
    if (chunk) {
      choice["delta"] = OrderedJson::object();
      if (!part.text.empty()) choice["delta"]["content"] = part.text;
    } else {
      choice["message"] = {{"role", "assistant"}, {"content", part.text}, {"refusal", nullptr}};
    }
    choice["logprobs"] = nullptr;
    if (head_.log_probs < 0 || (chunk && part.tokens.empty())) return;
    OrderedJson content = OrderedJson::array();
    for (const Token& token : part.tokens) {
      OrderedJson entry = entry_of(tokenizer(), token.id, token.logprob);
      entry["top_logprobs"] = OrderedJson::array();
      for (const TokenLogProb& top : token.top)
        entry["top_logprobs"].push_back(entry_of(tokenizer(), top.id, top.logprob));
      content.push_back(std::move(entry));
    }
    choice["logprobs"] = {{"content", std::move(content)}, {"refusal", nullptr}};
  }
};

}  // namespace

std::unique_ptr<ReplyFormat> chat_format(ReplyHead head, const ServedModel& served) {
  return std::make_unique<ChatReplyFormat>(std::move(head), served);
}

}  // namespace fathom
