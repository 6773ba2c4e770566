#include "serve/tokenizer_routes.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/api_error.h"
#include "serve/body_reader.h"
#include "serve/model_names.h"
#include "serve/token_text.h"

namespace fathom {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::vector<int32_t> tokens_asked_for(const std::string& text, const BodyReader& body,
                                      const ServedModel& served, const ApiOptions& options) {
  const RequestMaker maker(served, options, [] { return Load(); });
  if (body.find("messages")) {
    const bool open_answer = body.boolean("add_generation_prompt").value_or(true);
    return maker.encode(parse_chat_request(text, options.limits).messages, open_answer);
  }
  const std::optional<std::string> prompt = body.text("prompt");
  if (!prompt) refuse_field("prompt", "prompt is missing: the text");
  return maker.encode(*prompt, body.boolean("add_special_tokens").value_or(true));
}

}  // namespace

std::string tokenize_reply(const std::string& text, const ServedModel& served, const ApiOptions& options) {
  const nlohmann::json parsed = parse_body(text, options.limits);
  const BodyReader body(parsed);
  check_model_name(body.text("model").value_or(""), options.names);
  const std::vector<int32_t> ids = tokens_asked_for(text, body, served, options);
  OrderedJson json;
  json["count"] = ids.size();
  json["max_model_len"] = served.context;
  json["tokens"] = ids;
  json["token_strs"] = nullptr;
  if (body.boolean("return_token_strs").value_or(false)) {
    json["token_strs"] = OrderedJson::array();
    for (const int32_t id : ids) json["token_strs"].push_back(token_text(served.tokenizer(), id));
  }
  return to_line(json);
}

std::string detokenize_reply(const std::string& text, const ServedModel& served, const ApiOptions& options) {
  const nlohmann::json parsed = parse_body(text, options.limits);
  const BodyReader body(parsed);
  check_model_name(body.text("model").value_or(""), options.names);
  const nlohmann::json* tokens = body.list("tokens");
  if (!tokens) refuse_field("tokens", "tokens is missing: a list of token ids");
  if (std::ssize(*tokens) > options.limits.tokens)
    refuse_field("tokens",
                 fmt::format("tokens may have {} entries, got {}", options.limits.tokens, tokens->size()));
  std::vector<int32_t> ids;
  for (const nlohmann::json& value : *tokens) {
    const int32_t id = token_id(value, "tokens");
    if (id >= served.tokenizer().vocab_size())
      refuse_field("tokens", fmt::format("tokens: token {} is not in the vocabulary of {}", id,
                                         served.tokenizer().vocab_size()));
    ids.push_back(id);
  }
  return to_line(OrderedJson{{"prompt", served.tokenizer().decode(ids, true)}});
}

std::string tokenizer_info_reply(const ServedModel& served) {
  const Tokenizer& tokenizer = served.tokenizer();
  const auto token = [&](int32_t id) { return id < 0 ? OrderedJson() : OrderedJson(tokenizer.token(id)); };
  OrderedJson json;
  json["tokenizer_class"] = tokenizer.kind();
  json["vocab_size"] = tokenizer.vocab_size();
  json["bos_token"] = token(tokenizer.bos());
  json["eos_token"] = token(tokenizer.eos());
  json["pad_token"] = token(tokenizer.pad());
  json["add_bos_token"] = tokenizer.adds_bos();
  json["add_eos_token"] = tokenizer.adds_eos();
  json["chat_template"] =
      tokenizer.chat_template().empty() ? OrderedJson() : OrderedJson(tokenizer.chat_template());
  return to_line(json);
}

}  // namespace fathom
