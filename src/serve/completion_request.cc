// The body of POST /v1/completions.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "serve/api_error.h"
#include "serve/generation_fields.h"
#include "serve/schema_order.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

[[noreturn]] void wrong_prompt(const Json& value) {
  refuse_field("prompt",
               fmt::format("prompt must be a string, a list of strings, a list of token ids or a list of "
                           "lists of token ids, got {}",
                           kind_of(value)));
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number()) wrong_prompt(list);
    ids.push_back(token_id(id, "prompt"));
  }
  return ids;
}

std::vector<Prompt> prompts_of(const Json& value, const ApiLimits& limits) {
  if (value.is_string()) return {value.get<std::string>()};
  if (!value.is_array()) wrong_prompt(value);
  if (value.empty()) refuse_field("prompt", "prompt is an empty list: give at least one token or text");
  if (value.front().is_number()) return {ids_of(value)};
  if (std::ssize(value) > limits.choices)
    refuse_field("prompt", fmt::format("prompt may have {} entries, got {}", limits.choices, value.size()));
  std::vector<Prompt> prompts;
  for (const Json& each : value) {
    if (each.type() != value.front().type()) wrong_prompt(value);
    if (each.is_string()) {
      prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array()) {
      prompts.emplace_back(ids_of(each));
    } else {
      wrong_prompt(value);
    }
  }
  return prompts;
}

// A number here: of the most likely tokens. true is what some clients send for 1.
int64_t completion_log_probs(const BodyReader& body) {
  const Json* value = body.find("logprobs");
  if (value && value->is_boolean()) return value->get<bool>() ? 1 : -1;
  return body.integer("logprobs", 0, 20).value_or(-1);
}

}  // namespace

CompletionRequest parse_completion_request(const std::string& text, const ApiLimits& limits) {
  constexpr int64_t kDefaultTokens = 16;
  const Json json = parse_body(text, limits);
  const BodyReader body(json);
  CompletionRequest request;
  read_generation_fields(body, limits, request);
  if (request.format.kind == ResponseFormat::Kind::kSchema) request.format.schema = schema_in_order(text);
  request.log_probs = completion_log_probs(body);
  request.max_tokens = body.integer("max_tokens", 0, limits.tokens).value_or(kDefaultTokens);
  request.echo = body.boolean("echo").value_or(false);
  const Json* prompt = body.find("prompt");
  if (!prompt) refuse_field("prompt", "prompt is missing");
  request.prompts = prompts_of(*prompt, limits);
  const int64_t choices = request.answers * std::ssize(request.prompts);
  if (choices > limits.choices)
    refuse_field("n", fmt::format("n × prompts may be {}, got {} × {}", limits.choices, request.answers,
                                  request.prompts.size()));
  return request;
}

}  // namespace fathom
